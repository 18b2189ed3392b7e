"""Between a client and the server: connections that can be cut in the middle of an answer."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import suppress
from typing import Self

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER for a connection that ends with a reset, as when a machine on the way has gone."""


class Proxy:
    """Passes on what it gets, in a thread of its own, until ``cut``.

    Example:
        >>> with Proxy(8000) as proxy:
        ...     proxy.port, proxy.cut()
    """

    def __init__(self, port: int) -> None:
        self.port = 0
        self._to = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._listens = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listens.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def cut(self) -> None:
        """Break every connection, on both sides; new ones are taken."""

        async def cut() -> None:
            for writer in self._writers:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                writer.transport.abort()

        asyncio.run_coroutine_threadsafe(cut(), self._loop).result()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        async with await asyncio.start_server(self._connected, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            self._listens.set()
            await self._end.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers |= {writer, back}
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
        self._writers -= {writer, back}


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
