from __future__ import annotations

import logging
from dataclasses import dataclass

from mcp_serving.web_servers.responses import Scope, Send, respond

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Refusal:
    """Why a request is not served."""

    status: int
    told: str
    """What its client reads."""
    reason: str | None = None
    """What the log says, in a line that names the setting; None where there is nothing to set."""
    headers: tuple[tuple[bytes, bytes], ...] = ()

    async def send(self, scope: Scope, send: Send) -> None:
        if self.reason is not None:
            # As a literal: what a client sends is not to break the line, or to colour it.
            logger.warning("Refused a request for %.200r: %s.", scope["path"], self.reason)
        await respond(send, self.status, f"{self.told}\n", headers=self.headers)
