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
        more = len(message) - LONGEST
        record.msg = escaped(message[:LONGEST]) + (f"... and {more} characters more" if more > 0 else "")
        record.args = ()
    if record.exc_info:
        # The lines of a traceback stay lines; what an exception quotes in them may be a client's.
        text = logging.Formatter().formatException(record.exc_info)
        if not text.replace("\n", "").isprintable():
            record.exc_text = "\n".join(map(escaped, text.split("\n")))
    return True
