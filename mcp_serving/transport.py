from __future__ import annotations

from enum import StrEnum

from mcp_serving.errors import InvalidTransport


class Transport(StrEnum):
    """How an MCP server is reached: over ``stdio``, over ``http``, or over ``both`` at once.

    ``Transport("HTTP ")`` accepts any case and surrounding blanks, so argparse, environment variables and
    settings can use it as it is.

    Raises:
        InvalidTransport: the value is none of the three.

    Example:
        >>> Transport(" Stdio")
        <Transport.STDIO: 'stdio'>
    """

    STDIO = "stdio"
    HTTP = "http"
    BOTH = "both"

    @classmethod
    def parse(cls, text: object) -> Transport:
        """The transport called ``text``, in any case and with surrounding blanks.

        Raises:
            InvalidTransport: ``text`` is none of the three.
        """
        return cls(text)  # type: ignore[arg-type]  # what is no string is refused by _missing_

    @classmethod
    def _missing_(cls, value: object) -> Transport:
        if isinstance(value, str):
            for member in cls:
                if member.value == value.strip().lower():
                    return member
        allowed = ", ".join(member.value for member in cls)
        raise InvalidTransport(f"{value!r} is not a transport; allowed are: {allowed}.")

    @property
    def uses_stdio(self) -> bool:
        return self is not Transport.HTTP

    @property
    def uses_http(self) -> bool:
        return self is not Transport.STDIO
