"""Standard input and output as file descriptors for the event loop, reserved for JSON-RPC."""

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
from enum import Enum, auto

from mcp_serving.errors import ListenError

CHUNK = 64 * 1024


class StandardStreams:
    """Standard input and output, claimed for JSON-RPC.

    While they are claimed, file descriptor 1 is standard error and file descriptor 0 is /dev/null, for this process
    and for its children. So ``print()``, ``os.write(1, ...)``, logging handlers and child processes can neither write
    between the messages nor read one.

    Raises:
        ListenError: one of the two is closed.
    """

    def __init__(self) -> None:
        must_be_open()
        self.stdin = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
        self.stdout = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
        _point_at(0, os.open(os.devnull, os.O_RDONLY))
        _point_at(1, _standard_error())
        # Text that was printed before and is still buffered would otherwise be written between messages, at release.
        _flush_stdout()

    @property
    def is_terminal(self) -> bool:
        return os.isatty(self.stdin)

    @property
    def is_null(self) -> bool:
        """Whether standard input is /dev/null."""
        return os.path.sameopenfile(self.stdin, 0)

    def release(self) -> None:
        """Give both descriptors back to ``sys.stdin`` and ``sys.stdout``."""
        _flush_stdout()
        _point_at(0, self.stdin)
        _point_at(1, self.stdout)


def must_be_open() -> None:
    """Check that an MCP client can be connected to standard input and output.

    Raises:
        ListenError: one of the two was closed when the process started, or is closed now.
    """
    for descriptor, name, stream in ((0, "input", sys.__stdin__), (1, "output", sys.__stdout__)):
        # Where Python found it closed, a library may have opened another file with its number since.
        if stream is None or not is_open(descriptor):
            raise ListenError(
                f"Standard {name} is closed. An MCP client is connected to standard input and output; a service uses "
                "the transport http."
            )


def is_open(descriptor: int) -> bool:
    """Whether a file descriptor is open."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _flush_stdout() -> None:
    if sys.stdout is not None:
        with suppress(OSError, ValueError):
            sys.stdout.flush()


def _standard_error() -> int:
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _point_at(descriptor: int, target: int) -> None:
    os.dup2(target, descriptor)
    os.close(target)


class _Input(Enum):
    """How ``Lines`` learns that its descriptor has data."""

    PAUSED = auto()
    WATCHED = auto()
    """The event loop reports it."""
    ALWAYS_READY = auto()
    """A regular file or /dev/null: epoll refuses it, and reading it never blocks."""


class Lines:
    """The lines that arrive on a descriptor, read by the event loop.

    The descriptor stays blocking, and is read only when it is ready. Its flags cannot be changed, because they belong
    to the open file, which a terminal or the parent process shares.
    """

    READ_AHEAD = 1024 * 1024
    """Bytes that are read before ``next`` takes them. A single line may be longer."""

    def __init__(self, descriptor: int, on_end: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._searched = 0
        self._waiter: asyncio.Future[None] | None = None
        self._input = _Input.PAUSED
        self.at_end = False
        """Whether the client has closed it. Lines that were read may be left."""
        self._resume()

    @property
    def has_data(self) -> bool:
        """Whether a line, or a part of one, has arrived."""
        return bool(self._buffer)

    @property
    def exhausted(self) -> bool:
        """Whether the client has closed it and all lines were taken."""
        return self.at_end and not self._buffer

    def next(self) -> bytes | None:
        """The next line without its line break; None if no whole line has arrived. The last line needs no break."""
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
        """Return when more data has arrived, at the end of the input, or after ``close``."""
        self._resume()
        if self._input is _Input.ALWAYS_READY:
            self._read()
            await asyncio.sleep(0)
            return
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        self._pause()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _resume(self) -> None:
        if self._input is not _Input.PAUSED:
            return
        try:
            self._loop.add_reader(self._descriptor, self._read)
            self._input = _Input.WATCHED
        except PermissionError:
            self._input = _Input.ALWAYS_READY

    def _pause(self) -> None:
        if self._input is _Input.WATCHED:
            self._loop.remove_reader(self._descriptor)
            self._input = _Input.PAUSED

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, CHUNK)
        except BlockingIOError:  # another process that shares it made it non-blocking, and has read the data
            return
        except OSError:  # a terminal that was hung up reports EIO, a socket that was reset ECONNRESET
            data = b""
        if data:
            self._buffer += data
        else:
            self.at_end = True
        if self.at_end or len(self._buffer) > self.READ_AHEAD:
            self._pause()
        self._wake()
        if self.at_end:
            self._on_end()


class Output:
    """Writes whole messages to a descriptor, in order, as fast as its reader takes them. Never blocks the event loop.

    ``on_lost`` is called when the reader has gone, even if nothing is being written.
    """

    FULL_MESSAGES = 100
    FULL_BYTES = 1024 * 1024
    """With so much waiting to be written, ``has_room`` is cleared: the reader does not read."""

    def __init__(self, descriptor: int, on_lost: Callable[[OSError], None]) -> None:
        self._descriptor = descriptor
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)
        self._waiting: deque[tuple[memoryview, asyncio.Future[None]]] = deque()
        self._waiting_bytes = 0
        self._is_closed = False
        self.has_room = asyncio.Event()
        """Set unless the reader has fallen behind."""
        self.has_room.set()
        # A pipe or socket becomes readable when its reader goes. A terminal becomes readable when somebody types.
        self._watched = _is_pipe_or_socket(descriptor)
        if self._watched:
            self._loop.add_reader(descriptor, self._on_readable)

    async def write(self, data: bytes) -> None:
        """Write all of ``data``. After ``close``, or if the reader has gone, return without writing.

        If the caller is cancelled, the whole message is written nevertheless.
        """
        if self._is_closed:
            return
        unwritten = memoryview(data)
        if not self._waiting:
            try:
                unwritten = self._write_what_fits(unwritten)
            except OSError as error:
                self._lose(error)
                return
            if not unwritten:
                return
            self._loop.add_writer(self._descriptor, self._pump)
        written = self._loop.create_future()
        self._waiting.append((unwritten, written))
        self._waiting_bytes += len(unwritten)
        self._note_room()
        await written

    def close(self) -> None:
        """Discard everything that is not written yet."""
        if self._is_closed:
            return
        self._is_closed = True
        for _, written in self._waiting:
            if not written.done():
                written.set_result(None)
        self._waiting.clear()
        self._waiting_bytes = 0
        self._loop.remove_writer(self._descriptor)
        if self._watched:
            self._loop.remove_reader(self._descriptor)
        self.has_room.set()

    def check(self) -> None:
        """Call ``on_lost`` if the reader has gone."""
        if not self._is_closed and self._poll() & (select.POLLERR | select.POLLHUP):
            self._lose(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))

    def _write_what_fits(self, data: memoryview) -> memoryview:
        # After an error or a hang-up the descriptor is ready, too: the write reports the error.
        while data and self._poll():
            try:
                # After poll() has reported it as ready, PIPE_BUF bytes can be written without blocking.
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
        """The reader has gone, or the descriptor is a socket that is standard input as well."""
        self._loop.remove_reader(self._descriptor)
        self._watched = False
        self.check()

    def _lose(self, error: OSError) -> None:
        self.close()
        self._on_lost(error)


def _is_pipe_or_socket(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
