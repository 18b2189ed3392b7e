"""Standard input and output as file descriptors that the event loop waits for, kept clear of everything else."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import stat
import sys
from collections import deque
from collections.abc import Callable
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
        _flush_stdout()

    @property
    def is_terminal(self) -> bool:
        return os.isatty(self.stdin)

    @property
    def is_null(self) -> bool:
        """Whether standard input is /dev/null, or was closed when the process started."""
        return os.path.sameopenfile(self.stdin, 0)

    def release(self) -> None:
        """Give both descriptors back to ``sys.stdin`` and ``sys.stdout``."""
        _flush_stdout()
        _point_at(0, self.stdin)
        _point_at(1, self.stdout)


def _flush_stdout() -> None:
    if sys.stdout is not None:  # it is None in a process that was started with the descriptor closed
        with suppress(OSError, ValueError):
            sys.stdout.flush()


def _above_standard_streams(descriptor: int) -> int:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
    # Started with the descriptor closed (`<&-`): that is an empty input, or an output nobody reads.
    null = os.open(os.devnull, os.O_RDWR)
    try:
        return fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(null)


def _standard_error() -> int:
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _point_at(descriptor: int, target: int) -> None:
    if target == descriptor:  # it was closed, and what was just opened took its number
        os.set_inheritable(descriptor, True)
        return
    os.dup2(target, descriptor)
    os.close(target)


class Lines:
    """The lines that arrive on a descriptor, read by the event loop.

    The descriptor stays blocking, and is read only once it is ready: its flags belong to the open file,
    which a terminal or the parent process shares.
    """

    READ_AHEAD = 1024 * 1024
    """Bytes read before somebody asks for them; a single line may be longer."""

    def __init__(self, descriptor: int, on_end: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._searched = 0
        self._waiter: asyncio.Future[None] | None = None
        self._reading = False
        self._always_ready = False
        self.at_end = False
        """Whether the other side has closed it; lines may still be left."""
        self._start_reading()

    @property
    def exhausted(self) -> bool:
        """Whether the other side has closed it and every line was taken."""
        return self.at_end and not self._buffer

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
        except BlockingIOError:  # whoever shares it has made it non-blocking and was faster
            return
        except OSError:  # a terminal that was hung up reads as EIO, a socket that was reset as ECONNRESET
            data = b""
        if data:
            self._buffer += data
        else:
            self.at_end = True
        if self.at_end or len(self._buffer) > self.READ_AHEAD:
            self._stop_reading()
        self.wake()
        if self.at_end:
            self._on_end()


class Output:
    """Writes to a descriptor from the event loop, whole and in order, as fast as its reader takes it.

    ``on_lost`` is called when nobody reads it any more, also where nothing is being written.
    """

    FULL_MESSAGES = 100
    FULL_BYTES = 1024 * 1024
    """So much that is not written yet means that the reader has stopped reading."""

    def __init__(self, descriptor: int, on_lost: Callable[[OSError], None]) -> None:
        self._descriptor = descriptor
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)
        self._waiting: deque[tuple[memoryview, asyncio.Future[None]]] = deque()
        self._waiting_bytes = 0
        self._lost: OSError | None = None
        self.has_room = asyncio.Event()
        """Set unless the reader has fallen behind."""
        self.has_room.set()
        # What a terminal reports as readable is what somebody types, and the rest is nothing to wait for.
        self._watched = _is_pipe_or_socket(descriptor)
        if self._watched:
            self._loop.add_reader(descriptor, self._on_readable)

    async def write(self, data: bytes) -> None:
        """Write all of ``data``. A caller that is cancelled meanwhile leaves a whole message behind.

        Raises:
            OSError: the other side is gone.
        """
        unwritten = memoryview(data)
        if self._lost is not None:
            raise _again(self._lost)
        if not self._waiting:
            try:
                unwritten = self._write_what_fits(unwritten)
            except OSError as error:
                self._lose(error)
                raise
            if not unwritten:
                return
            self._loop.add_writer(self._descriptor, self._pump)
        written = self._loop.create_future()
        self._waiting.append((unwritten, written))
        self._waiting_bytes += len(unwritten)
        self._note_room()
        await written

    def close(self) -> None:
        """Give up on what nobody has read."""
        self._give_up(BrokenPipeError(errno.EPIPE, "the output was closed"))

    def check(self) -> None:
        """Find out whether its reader is gone."""
        if self._lost is None and self._poll() & (select.POLLERR | select.POLLHUP):
            self._lose(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))

    def _write_what_fits(self, data: memoryview) -> memoryview:
        # An error or a hang-up counts as ready: the write then reports it.
        while data and self._poll():
            try:
                # What poll() has reported as ready takes this much without blocking.
                data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
            except BlockingIOError:
                break
        return data

    def _poll(self) -> int:
        ready = self._ready.poll(0)
        return ready[0][1] if ready else 0

    def _pump(self) -> None:
        try:
            while self._waiting:
                data, written = self._waiting.popleft()
                unwritten = self._write_what_fits(data)
                self._waiting_bytes -= len(data) - len(unwritten)
                if unwritten:
                    self._waiting.appendleft((unwritten, written))
                    break
                if not written.done():
                    written.set_result(None)
        except OSError as error:
            self._waiting.appendleft((data, written))
            self._lose(error)
            return
        if not self._waiting:
            self._loop.remove_writer(self._descriptor)
        self._note_room()

    def _note_room(self) -> None:
        if len(self._waiting) >= self.FULL_MESSAGES or self._waiting_bytes >= self.FULL_BYTES:
            self.has_room.clear()
        else:
            self.has_room.set()

    def _on_readable(self) -> None:
        """The loop reports this when the reader has gone, and where a socket is standard input as well."""
        self._loop.remove_reader(self._descriptor)
        self._watched = False
        self.check()

    def _lose(self, error: OSError) -> None:
        self._give_up(error)
        self._on_lost(error)

    def _give_up(self, error: OSError) -> None:
        if self._lost is not None:
            return
        self._lost = error
        for _, written in self._waiting:
            if not written.done():
                written.set_exception(_again(error))
                written.exception()  # seen: its caller may have been cancelled
        self._waiting.clear()
        self._waiting_bytes = 0
        self._loop.remove_writer(self._descriptor)
        if self._watched:
            self._loop.remove_reader(self._descriptor)
        self.has_room.set()


def _again(error: OSError) -> OSError:
    """The same error for one more caller: an exception instance is raised only once."""
    return OSError(error.errno, error.strerror)


def _is_pipe_or_socket(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
