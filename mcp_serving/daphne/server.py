"""A Daphne server with limits on the size and the duration of requests, for the module that builds the server.

Daphne and Twisted buffer a whole request body before the application sees it, accept a byte a minute without end, and
close connections without a response. No application could set these limits.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.server import Server as DaphneServer
from twisted.internet.interfaces import ISSLTransport
from twisted.web.http import HTTPChannel

from mcp_serving.web_servers.daphne import WRITE_TIMEOUT, progress_of

logger = logging.getLogger(__name__)

_HTTPChannel: Any = HTTPChannel  # few of its methods have types

_NAMES = (
    "MAX_LENGTH",
    "_respondToBadRequestAndDisconnect",
    "allContentReceived",
    "allHeadersReceived",
    "headerReceived",
    "lineLengthExceeded",
    "maxHeaders",
    "timeoutConnection",
    "totalHeadersSize",
)
"""The names of Twisted's HTTPChannel that the limits are made of."""

LINGER_SECONDS = 30.0
"""Seconds that a refused client may continue to send, so that it reads the reason."""


class Server(DaphneServer):  # type: ignore[misc]
    """Daphne's server, with limits on the size of a request and on the time that it takes.

    A request over a limit is answered at once, and its connection is closed. Besides its own arguments it takes every
    argument of ``daphne.server.Server``, and ``runmcp`` serves it like any other. It does not offer HTTP/2, for which
    it has no limits.

    Args:
        max_request_body_size: bytes of the body of a request (413); None for no limit. A complete body is in memory
            for a moment. The MCP endpoint has its own limit of 4 MiB.
        max_header_size: bytes of the request line and the headers together, without line ends (431).
        max_headers: the number of headers of a request (431).
        read_timeout: seconds from the first byte of a request to its last (408); None for no limit. An upload of
            ``max_request_body_size`` must be possible in this time.
        write_timeout: seconds that a client may read nothing of a response before its connection is closed; None for
            no limit. A client that reads slowly has all the time it needs.
        keep_alive_timeout: seconds that a connection may stay open without a request; None for no limit.

    Raises:
        TypeError: a limit is not a number.
        ValueError: a limit is negative, not finite, or zero where that would refuse every request.

    Example:
        >>> Server(application, endpoints=["tcp:port=8000:interface=127.0.0.1"], max_request_body_size=50 * 2**20)
    """

    def __init__(
        self,
        *args: Any,
        max_request_body_size: int | None = 10 * 2**20,
        max_header_size: int = 2**14,
        max_headers: int = 500,
        read_timeout: float | None = 120.0,
        write_timeout: float | None = WRITE_TIMEOUT,
        keep_alive_timeout: float | None = 60.0,
        **kwargs: Any,
    ) -> None:
        self.max_request_body_size = _size("max_request_body_size", max_request_body_size, least=0, optional=True)
        self.max_header_size = _size("max_header_size", max_header_size)
        self.max_headers = _size("max_headers", max_headers)
        self.read_timeout = _seconds("read_timeout", read_timeout)
        self.write_timeout = _seconds("write_timeout", write_timeout)
        self.keep_alive_timeout = _seconds("keep_alive_timeout", keep_alive_timeout)
        super().__init__(*args, **kwargs)
        if missing := [name for name in _NAMES if not hasattr(HTTPChannel, name)]:
            logger.warning(
                "This release of Twisted is not supported, and the limits of mcp_serving.daphne.Server do not hold: %s "
                "has moved. Install the release that mcp-serving requires: pip install --upgrade mcp-serving.",
                missing[0],
            )

    @property
    def http_factory(self) -> HTTPFactory:
        """Makes the protocol of each connection. Daphne's ``run()`` sets this attribute, and listens with its value."""
        return self._http_factory

    @http_factory.setter
    def http_factory(self, _: HTTPFactory) -> None:
        self._http_factory = _Factory(self)


def _size(name: str, value: Any, *, least: int = 1, optional: bool = False) -> Any:
    if value is None and optional:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number{' or None' if optional else ''}, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value!r}")
    return value


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds or None, not {value!r}")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a finite number of seconds above 0, or None, not {value!r}")
    return value


class _Request(WebRequest):  # type: ignore[misc]
    """A request whose body stays within the limit."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Twisted would parse every form into `args` and copy the whole body. Daphne does not use `args`.
        self._parsePOSTFormSubmission = False

    def process(self) -> None:
        # Daphne trusts this header of any client, so that a client could evade a proxy's rule about paths. A value that
        # is not ASCII makes Daphne fail. The root path is set with the server's root_path.
        self.requestHeaders.removeHeader(b"daphne-root-path")
        super().process()

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802
        if self.channel.is_too_large(self.content.tell() + len(data)):
            self.channel.refuse_body()
        elif not self.channel.refused:
            super().handleContentChunk(data)


class _Channel(_HTTPChannel):  # type: ignore[misc]
    """An HTTP/1.1 connection that refuses requests over the limits."""

    refused = False

    def connectionMade(self) -> None:  # noqa: N802
        self._server: Server = self.factory.server
        self.totalHeadersSize = self.MAX_LENGTH = self._server.max_header_size
        self.maxHeaders = self._server.max_headers
        self._reading = _Timer(self)
        self._closing = _Timer(self)
        super().connectionMade()

    # Receiving a request

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        if self.refused:
            return
        super().dataReceived(data)
        if self._is_within_a_request and not self._reading.runs:
            self._reading.start(self._server.read_timeout, self._took_too_long)

    @property
    def _is_within_a_request(self) -> bool:
        return not self._handlingRequest and not self.refused and bool(self.requests or self._buffer)

    def headerReceived(self, line: bytes) -> bool:  # noqa: N802
        try:
            valid: bool = super().headerReceived(line)
        except ValueError:  # a Content-Length with more digits than Python converts to a number
            self._respondToBadRequestAndDisconnect()
            return False
        return valid

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: N802
        self._refuse_headers()

    def allHeadersReceived(self) -> None:  # noqa: N802
        if self.length is not None and self.is_too_large(self.length):
            self.refuse_body()  # before Twisted tells the client to continue
        else:
            super().allHeadersReceived()

    def allContentReceived(self) -> None:  # noqa: N802
        if not self.refused:
            self._reading.cancel()
            super().allContentReceived()

    def is_too_large(self, size: int) -> bool:
        limit = self._server.max_request_body_size
        return limit is not None and size > limit

    # Refusing a request

    def _respondToBadRequestAndDisconnect(self) -> None:  # noqa: N802
        if self._receivedHeaderSize > self.totalHeadersSize or self._receivedHeaderCount > self.maxHeaders:
            self._refuse_headers()
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, "This is not a request of HTTP/1.1.")

    def _refuse_headers(self) -> None:
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"The headers have more than {self._server.max_header_size} bytes, or are more than "
            f"{self._server.max_headers}.",
        )

    def refuse_body(self) -> None:
        self._refuse(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"The body of the request has more than {self._server.max_request_body_size} bytes.",
        )

    def _took_too_long(self) -> None:
        self._refuse(
            HTTPStatus.REQUEST_TIMEOUT, f"The request was not complete within {self._server.read_timeout:g} seconds."
        )

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Answer at once, discard whatever the client still sends, and close when it has read the answer.

        Closing a socket with unread data resets the connection, and the client would lose the answer.
        """
        if self.refused:
            return
        self.refused = True
        self.clearLineBuffer()
        self._reading.cancel()
        self.setTimeout(None)
        peer = self.getPeer()
        logger.info("Refused a request from %s with %d: %s", getattr(peer, "host", peer), status, text)
        body = f"{text}\n".encode()
        self.writeSequence(
            [
                f"HTTP/1.1 {status:d} {status.phrase}\r\n".encode(),
                b"Content-Type: text/plain; charset=utf-8\r\n",
                f"Content-Length: {len(body)}\r\n".encode(),
                b"Connection: close\r\n\r\n",
                body,
            ]
        )
        self._networkProducer.unregisterProducer()
        if ISSLTransport.providedBy(self.transport):
            self.transport.loseConnection()  # sends TLS's closing message, and reads until the client's comes
        else:
            self.transport.loseWriteConnection()
        self._closing.start(LINGER_SECONDS, self.transport.abortConnection)

    # Closing

    def timeoutConnection(self) -> None:  # noqa: N802
        if self._reading.runs:
            self.setTimeout(self.timeOut)  # it is not idle, and has its own deadline
        else:
            self.loseConnection()

    def loseConnection(self) -> None:  # noqa: N802
        super().loseConnection()
        self._expect_progress()

    def _expect_progress(self, before: tuple[int, int] | None = None) -> None:
        """Close a connection that makes no progress. Twisted would wait for the client without limit."""
        now = progress_of(self.transport)
        if now == before:
            self.transport.abortConnection()
        else:
            self._closing.start(self._server.write_timeout, partial(self._expect_progress, now))

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        self._reading.cancel()
        self._closing.cancel()
        super().connectionLost(reason)


class _Timer:
    """At most one scheduled call."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._call: Any = None

    @property
    def runs(self) -> bool:
        return self._call is not None and self._call.active()

    def start(self, seconds: float | None, call: Callable[[], object]) -> None:
        self.cancel()
        if seconds is not None:
            self._call = self._channel.callLater(seconds, call)

    def cancel(self) -> None:
        if self.runs:
            self._call.cancel()


class _Factory(HTTPFactory):  # type: ignore[misc]
    # Replaces Twisted's choice between HTTP/1.1 and HTTP/2.
    protocol = _Channel

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.timeOut = server.keep_alive_timeout

    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802
        channel = super().buildProtocol(addr)
        channel.requestFactory = _Request
        return channel

    def acceptableProtocols(self) -> list[bytes]:  # noqa: N802
        return [b"http/1.1"]
