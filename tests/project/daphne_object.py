import logging
import sys

from tests.project.daphnes import build


class ToStandardError(logging.Handler):
    """Looks up standard error for each record, as rich's handler does."""

    def emit(self, record: logging.LogRecord) -> None:
        print(record.getMessage(), file=sys.stderr)


logging.getLogger().addHandler(ToStandardError())
server = build()
