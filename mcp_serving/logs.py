"""Text from clients in the log: it is escaped and cut, so that it can neither forge a line nor fill the disk.

The SDK logs names, methods and URIs exactly as its clients send them. A logging filter applies only to the records of
its own logger, not to those of child loggers, and the handlers belong to the project. So the filter is put on every
logger of the SDK and of this package.
"""

from __future__ import annotations

import logging
from typing import Any

_PACKAGES = ("mcp", "mcp_serving", "sse_starlette")  # sse_starlette logs the events of the SDK's streams

MAX_CHARACTERS = 4000
"""Characters of a message, or of one line of a traceback, that are kept."""


def escaped(text: str) -> str:
    """``text`` in one line. Unprintable characters are replaced by their escapes, as ``repr`` does."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def escaped_lines(text: str) -> str:
    """A traceback with its line breaks kept. Each line is escaped and cut."""
    return "\n".join(map(_escaped_and_cut, text.split("\n")))


def _escaped_and_cut(text: str) -> str:
    more = len(text) - MAX_CHARACTERS
    return escaped(text[:MAX_CHARACTERS]) + (f"... and {more} characters more" if more > 0 else "")


class RequestName:
    """The name of a request in log lines. The text is made when a line is written, because most names are never logged.

    Args:
        method: the method of HTTP or MCP.
        target: the path, or the tool, prompt or resource; if empty, the method is the name.
    """

    __slots__ = ("_method", "_target")

    def __init__(self, method: str, target: object) -> None:
        # Cut now: a session keeps the name of the request that opened it.
        self._method = method[:100]
        self._target = str(target)[:100] if target else ""

    def __str__(self) -> str:
        method = escaped(self._method)
        return f"{method} {self._target!r}" if self._target else method

    __repr__ = __str__  # for handlers that store the arguments of a log line


def request_name(method: str, params: Any) -> RequestName:
    """The name of an MCP request: its method, and the tool, prompt or resource."""
    target = (params.get("name") or params.get("uri")) if isinstance(params, dict) else None
    return RequestName(method, target)


def describe(method: str, params: Any) -> str:
    """The name of an MCP request as a text."""
    return str(request_name(method, params))


def install_filter() -> None:
    """Put the filter on all loggers that exist by now. Calling it again adds the filter to new loggers only."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in _PACKAGES:
            logging.getLogger(name).addFilter(_escape_record)


def _escape_record(record: logging.LogRecord) -> bool:
    try:
        message = record.getMessage()
    except Exception:  # the logging call has wrong arguments: the handlers report that
        return True
    if len(message) > MAX_CHARACTERS or not message.isprintable():
        record.msg, record.args = _escaped_and_cut(message), ()
    if record.exc_info:
        text = logging.Formatter().formatException(record.exc_info)
        if (kept := escaped_lines(text)) != text:
            record.exc_text = kept
    return True
