"""How each MCP client is told about a server: which file, which keys, which entry."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_serving.inspection.config_files import toml_table

Entry = dict[str, Any]


@dataclass(frozen=True)
class Process:
    """A server that the client starts, and talks to over stdio."""

    command: str
    args: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict, hash=False)

    def entry(self, **more: Any) -> Entry:
        return {**more, "command": self.command, "args": list(self.args), **({"env": self.env} if self.env else {})}


@dataclass(frozen=True)
class Endpoint:
    """A server that runs already, and is reached over HTTP."""

    url: str
    token: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def entry(self, url_key: str = "url", *, headers_key: str = "headers", **more: Any) -> Entry:
        return {**more, url_key: self.url, **({headers_key: self.headers} if self.headers else {})}


@dataclass(frozen=True)
class MCPClient:
    """One client, and how its configuration is written.

    Args:
        key: its name on the command line.
        label: its name for people.
        keys: where its servers are in the file.
        path: its file; relative paths are in the current project.
        process, endpoint: the entry for either kind of server.
        shell: the command that does the same, where the client has one.
        endpoint_note: what the user of an endpoint has to know.
        file_in_words: the file, for a reader on another machine; its path if empty.
    """

    key: str
    label: str
    keys: tuple[str, ...]
    path: Callable[[], Path]
    process: Callable[[Process], Entry] = Process.entry
    endpoint: Callable[[Endpoint], Entry] = Endpoint.entry
    shell: Callable[[str, Process | Endpoint], str | None] = lambda name, server: None
    endpoint_note: str = ""
    file_in_words: str = ""

    def entry(self, server: Process | Endpoint) -> Entry:
        return self.endpoint(server) if isinstance(server, Endpoint) else self.process(server)

    def text(self, name: str, server: Process | Endpoint) -> str:
        """What stands in the file if it holds this server alone."""
        if self.path().suffix == ".toml":
            return toml_table([*self.keys, name], self.entry(server))
        document: Any = {name: self.entry(server)}
        for key in reversed(self.keys):
            document = {key: document}
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _claude_desktop_file() -> Path:
    if sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support"
    elif sys.platform == "win32":
        folder = Path(os.environ.get("APPDATA", Path.home() / "AppData" / "Roaming"))
    else:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return folder / "Claude" / "claude_desktop_config.json"


def _through_mcp_remote(endpoint: Endpoint) -> Entry:
    """For clients whose file takes processes alone. The header is in the environment: some shells split its space."""
    args = ["-y", "mcp-remote", endpoint.url]
    if not endpoint.token:
        return Process("npx", args).entry()
    header = ["--header", "Authorization:${MCP_AUTHORIZATION}"]
    return Process("npx", [*args, *header], {"MCP_AUTHORIZATION": f"Bearer {endpoint.token}"}).entry()


def _claude_mcp_add(name: str, server: Process | Endpoint) -> str:
    if isinstance(server, Endpoint):
        header = [part for key, value in server.headers.items() for part in ("--header", f"{key}: {value}")]
        return shlex.join(["claude", "mcp", "add", "--transport", "http", name, server.url, *header])
    env = [part for key, value in server.env.items() for part in ("--env", f"{key}={value}")]
    return shlex.join(["claude", "mcp", "add", name, *env, "--", server.command, *server.args])


def _inspector(name: str, server: Process | Endpoint) -> str:
    return f"npx @modelcontextprotocol/inspector --config mcp.json --server {shlex.quote(name)}"


CLIENTS = {
    client.key: client
    for client in (
        MCPClient(
            "claude-desktop",
            "Claude Desktop",
            ("mcpServers",),
            _claude_desktop_file,
            endpoint=_through_mcp_remote,
            file_in_words="claude_desktop_config.json",  # which is elsewhere on each system; its settings open it
            endpoint_note=(
                "The file of Claude Desktop takes local processes alone: this entry starts npx mcp-remote, which needs "
                "Node.js. A server that signs users in can be added in the settings instead, as a custom connector."
            ),
        ),
        MCPClient(
            "claude-code",
            "Claude Code",
            ("mcpServers",),
            lambda: Path(".mcp.json"),
            process=lambda server: server.entry(type="stdio"),
            endpoint=lambda server: server.entry(type="http"),
            shell=_claude_mcp_add,
        ),
        MCPClient(
            "vscode",
            "VS Code",
            ("servers",),
            lambda: Path(".vscode", "mcp.json"),
            process=lambda server: server.entry(type="stdio"),
            endpoint=lambda server: server.entry(type="http"),
        ),
        MCPClient(
            "cursor",
            "Cursor",
            ("mcpServers",),
            lambda: Path.home() / ".cursor" / "mcp.json",
        ),
        MCPClient(
            "codex",
            "Codex",
            ("mcp_servers",),
            lambda: Path.home() / ".codex" / "config.toml",
            endpoint=lambda server: server.entry(headers_key="http_headers"),
        ),
        MCPClient(
            "gemini",
            "Gemini CLI",
            ("mcpServers",),
            lambda: Path.home() / ".gemini" / "settings.json",
            endpoint=lambda server: server.entry("httpUrl"),
        ),
        MCPClient(
            "windsurf",
            "Windsurf",
            ("mcpServers",),
            lambda: Path.home() / ".codeium" / "windsurf" / "mcp_config.json",
            endpoint=lambda server: server.entry("serverUrl"),
        ),
        MCPClient(
            "inspector",
            "MCP Inspector",
            ("mcpServers",),
            lambda: Path("mcp.json"),
            process=lambda server: server.entry(type="stdio"),
            endpoint=lambda server: server.entry(type="streamable-http"),
            shell=_inspector,
        ),
    )
}
"""The clients that are known, by their names on the command line."""


def slug(name: str) -> str:
    """The name of a server as clients take it: letters, digits, hyphens and underscores."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "django"
