"""The transports over which an MCP server is served."""

from __future__ import annotations

from enum import StrEnum

from mcp_serving.errors import InvalidTransport


class Transport(StrEnum):
    """How clients reach the MCP server: over ``stdio``, over ``http``, or over ``both`` in one process.

    Upper case and surrounding blanks are accepted, so that a value from the command line, from the environment or
    from the settings can be passed on as it is.

    Raises:
        InvalidTransport: the value is not one of the three.

    Example:
        >>> Transport(" Stdio")
        <Transport.STDIO: 'stdio'>
    """

    STDIO = "stdio"
    HTTP = "http"
    BOTH = "both"

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
