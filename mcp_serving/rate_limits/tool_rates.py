"""How often each caller may call the tools of one server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp.server.mcpserver.exceptions import ToolError

from mcp_serving.call_outcomes import Refused
from mcp_serving.rate_limits import limiter

if TYPE_CHECKING:
    from mcp_serving.rate_limits.rate import Rate


class ToolRates:
    """The rates of the tools of one server.

    Args:
        server: the name of the server. Servers with different names count separately.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._rates: dict[str, Rate] = {}

    def require(self, tool: str, rate: Rate | None) -> None:
        if rate is not None:
            self._rates[tool] = rate

    def remove(self, tool: str) -> None:
        self._rates.pop(tool, None)

    def __contains__(self, tool: str) -> bool:
        return tool in self._rates

    def __bool__(self) -> bool:
        """Whether a tool has a rate."""
        return bool(self._rates)

    async def check(self, tool: str, call: str | None) -> None:
        """Count a call of a tool, unless no MCP request is being handled.

        Args:
            tool: the name of the tool.
            call: the id of the call that this request continues; see ``limiter.refusal``.

        Raises:
            ToolError: the caller has to wait.
        """
        caller = limiter.current_caller()
        if caller is None:
            return
        if refused := await limiter.refusal(self._rates[tool], f"{self._server}: {tool}", caller, call):
            raise ToolError(f"{tool}: {refused.text}") from Refused("rate")
