"""What clients send, in the log: it breaks no line, colours none, and fills none.

The SDK writes names, methods and URIs of its clients into messages as they came. A filter of a logger sees the records
of that logger alone, not of its children, and the handlers are the project's: so each logger of the SDK, and each of
ours, is given the filter.
"""

from __future__ import annotations

import logging

_NAMES = ("mcp", "mcp_serving", "sse_starlette")  # the last writes the SDK's events
LONGEST = 4000
"""Characters of a message, of which a client may have sent any number."""


def escaped(text: str) -> str:
    """``text`` in one line, with ``repr``'s escapes for what cannot be seen."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def escaped_lines(text: str) -> str:
    """A traceback: its lines stay lines, and what an exception quotes in one of them is no longer than a message."""
    return "\n".join(map(_cut, text.split("\n")))


def _cut(text: str) -> str:
    more = len(text) - LONGEST
    return escaped(text[:LONGEST]) + (f"... and {more} characters more" if more > 0 else "")


def keep_lines_whole() -> None:
    """Put the filter on the loggers that exist by now; once is enough for each."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in _NAMES:
            logging.getLogger(name).addFilter(_one_line)


def _one_line(record: logging.LogRecord) -> bool:
    try:
        message = record.getMessage()
    except Exception:  # a mistake in the call, which the handlers report
        return True
    if len(message) > LONGEST or not message.isprintable():
        record.msg, record.args = _cut(message), ()
    if record.exc_info:
        text = logging.Formatter().formatException(record.exc_info)
        if (kept := escaped_lines(text)) != text:
            record.exc_text = kept
    return True
