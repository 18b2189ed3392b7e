"""Whether ``import mcp`` gives the official SDK."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def sdk_problem() -> str | None:
    """Why ``import mcp`` would not give the official SDK, in one line; None if it would. Imports nothing."""
    spec = find_spec("mcp")
    if spec is None:
        return "The MCP SDK is not installed. Install it: pip install 'mcp>=2.3,<3'."
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if any((folder / "server" / "mcpserver").is_dir() for folder in folders):
        return None
    if any((folder / "server" / "fastmcp").is_dir() for folder in folders):
        return "The installed MCP SDK is too old; version 2.3 or later is needed. Run: pip install 'mcp>=2.3,<3'."
    where = spec.origin or ", ".join(map(str, folders))
    return f"{where} hides the MCP SDK, which has the same import name, 'mcp'. Rename it, or move it into a package."
