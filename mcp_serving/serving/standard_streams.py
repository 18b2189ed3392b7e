"""Standard input and output as file descriptors that the event loop waits for, kept clear of everything else."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import sys
from collections import deque
from contextlib import suppress

CHUNK = 64 * 1024


class StandardStreams:
    """File descriptors 0 and 1, claimed for JSON-RPC.

    While they are claimed, descriptor 1 is standard error and descriptor 0 is empty, for this process and
    the children it starts: no ``print()``, no ``os.write(1, ...)``, no logging handler and no child process
    can write between the messages or take one away.
    """

    def __init__(self) -> None:
        self.stdin = _above_standard_streams(0)
        self.stdout = _above_standard_streams(1)
        _point_at(0, os.open(os.devnull, os.O_RDONLY))
        _point_at(1, _standard_error())
        # What was printed before, and not flushed yet, would otherwise come out later: on the wire, at release.
        with suppress(OSError, ValueError):
            sys.stdout.flush()

    @property
    def is_terminal(self) -> bool:
        return os.isatty(self.stdin)

    def release(self) -> None:
        """Give both descriptors back to ``sys.stdin`` and ``sys.stdout``."""
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        _point_at(0, self.stdin)
        _point_at(1, self.stdout)


def _above_standard_streams(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        # Started with the descriptor closed (`<&-`): that is an empty input, or an output nobody reads.
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def _standard_error() -> int:
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _point_at(descriptor: int, target: int) -> None:
    os.dup2(target, descriptor)
    os.close(target)


class Lines:
    """The lines that arrive on a descriptor, read by the event loop.

    The descriptor stays blocking, and is read only once it is ready: its flags belong to the open file,
    which a terminal or the parent process shares.
    """

    READ_AHEAD = 1024 * 1024
    """Bytes read before somebody asks for them; a single line may be longer."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._searched = 0
        self._waiter: asyncio.Future[None] | None = None
        self._reading = False
        self._always_ready = False
        self.at_end = False
        """Whether the other side has closed it; whole lines may still be left."""

    def next(self) -> bytes | None:
        """The next line without its end, or None if there is no whole one; the last may lack its newline."""
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._buffer)
            if not self.at_end or not self._buffer:
                return None
            end = len(self._buffer)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line

    async def more(self) -> None:
        """Return when there is more input, at its end, or when woken."""
        self._start_reading()
        if self._always_ready:
            self._read()
            await asyncio.sleep(0)
            return
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        self._stop_reading()
        self.wake()

    def _start_reading(self) -> None:
        if self._reading or self._always_ready:
            return
        try:
            self._loop.add_reader(self._descriptor, self._read)
            self._reading = True
        except PermissionError:  # epoll refuses regular files and /dev/null: these never block
            self._always_ready = True

    def _stop_reading(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._descriptor)
            self._reading = False

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, CHUNK)
        except OSError:  # a terminal that was hung up reads as EIO, a socket that was reset as ECONNRESET
            data = b""
        if data:
            self._buffer += data
        else:
            self.at_end = True
        if self.at_end or len(self._buffer) > self.READ_AHEAD:
            self._stop_reading()
        self.wake()


class Output:
    """Writes to a descriptor from the event loop, whole and in order, as fast as its reader takes it."""

    FULL = 100
    """So many unwritten messages mean that the reader has stopped reading."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)
        self._waiting: deque[tuple[memoryview, asyncio.Future[None]]] = deque()
        self.has_room = asyncio.Event()
        """Set unless the reader has fallen behind."""
        self.has_room.set()

    async def write(self, data: bytes) -> None:
        """Write all of ``data``. A caller that is cancelled meanwhile leaves a whole message behind.

        Raises:
            OSError: the other side is gone.
        """
        written = self._loop.create_future()
        self._waiting.append((memoryview(data), written))
        if len(self._waiting) == 1:
            self._pump()
        elif len(self._waiting) >= self.FULL:
            self.has_room.clear()
        await written

    def close(self) -> None:
        """Give up on what nobody has read."""
        self._fail(BrokenPipeError(errno.EPIPE, "the output was closed"))

    def _pump(self) -> None:
        try:
            while self._waiting and self._is_ready():
                data, written = self._waiting[0]
                # What poll() has reported as ready takes this much without blocking.
                data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
                if data:
                    self._waiting[0] = (data, written)
                else:
                    self._waiting.popleft()
                    if not written.done():
                        written.set_result(None)
        except OSError as error:
            self._fail(error)
        if self._waiting:
            self._loop.add_writer(self._descriptor, self._pump)
        else:
            self._loop.remove_writer(self._descriptor)
        if len(self._waiting) < self.FULL:
            self.has_room.set()

    def _is_ready(self) -> bool:
        """Whether a write would not block; an error or a hang-up counts, the write then reports it."""
        return bool(self._ready.poll(0))

    def _fail(self, error: OSError) -> None:
        for _, written in self._waiting:
            if not written.done():
                written.set_exception(OSError(error.errno, error.strerror))
                written.exception()  # seen: its caller may have been cancelled
        self._waiting.clear()
        self._loop.remove_writer(self._descriptor)
        self.has_room.set()
