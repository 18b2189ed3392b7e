"""``manage.py mcp config``: what each client is told, and what stays as it is in the client's file."""

from __future__ import annotations

import json
import shlex
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mcp_serving.inspection.client_configurations import CLIENTS, Endpoint, Process
from mcp_serving.inspection.config_files import with_json_entry, with_toml_entry, write_entry
from tests.support.harness import ROOT

ENTRY = {"command": "python", "args": ["manage.py", "runmcp"]}

WITH_COMMENTS = """\
{
    // The servers of this workspace
    "servers": {
        "other": { "url": "https://other.example/mcp" /* theirs */ }, // keep
    },
    "inputs": [],
}
"""

CODEX = """\
# My settings
model = "gpt"   # the default

[mcp_servers.other]
command = "other"

[mcp_servers.other.env]
KEY = "[mcp_servers.shop]"

[profiles.fast]
model = "mini"
"""


def config(shop: dict[str, str], home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "mcp", "config", *arguments],
        cwd=home,
        env={**shop, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
    )


# The entries


@pytest.mark.process
@pytest.mark.parametrize(
    ("client", "file", "keys", "entry"),
    [
        (
            "claude-desktop",
            ".config/Claude/claude_desktop_config.json",
            "mcpServers",
            {
                "command": "npx",
                "args": ["-y", "mcp-remote", "URL", "--header", "Authorization:${MCP_AUTHORIZATION}"],
                "env": {"MCP_AUTHORIZATION": "Bearer TOKEN"},
            },
        ),
        ("claude-code", ".mcp.json", "mcpServers", {"type": "http", "url": "URL", "headers": "HEADERS"}),
        ("vscode", ".vscode/mcp.json", "servers", {"type": "http", "url": "URL", "headers": "HEADERS"}),
        ("cursor", ".cursor/mcp.json", "mcpServers", {"url": "URL", "headers": "HEADERS"}),
        ("codex", ".codex/config.toml", "mcp_servers", {"url": "URL", "http_headers": "HEADERS"}),
        ("gemini", ".gemini/settings.json", "mcpServers", {"httpUrl": "URL", "headers": "HEADERS"}),
        ("windsurf", ".codeium/windsurf/mcp_config.json", "mcpServers", {"serverUrl": "URL", "headers": "HEADERS"}),
        ("inspector", "mcp.json", "mcpServers", {"type": "streamable-http", "url": "URL", "headers": "HEADERS"}),
    ],
)
def test_each_client_is_told_of_an_endpoint_in_its_own_file_and_words(
    client: str,
    file: str,
    keys: str,
    entry: dict[str, Any],
    shop: dict[str, str],
    tmp_path: Path,
) -> None:
    is_toml = file.endswith(".toml")
    other = {"command": "other"}
    before = f'theme = "dark"\n\n[{keys}.other]\ncommand = "other"\n' if is_toml else ""
    before = before or json.dumps({"theme": "dark", keys: {"other": other}}, indent=4)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(before)
    done = config(shop, tmp_path, client, "--http", "URL", "--token", "TOKEN", "--name", "shop", "--write")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / file).read_text()
    document = tomllib.loads(text) if is_toml else json.loads(text)
    headers = {"Authorization": "Bearer TOKEN"}
    ours = {key: headers if each == "HEADERS" else each for key, each in entry.items()}
    assert document == {"theme": "dark", keys: {"other": other, "shop": ours}}
    (backup,) = (tmp_path / file).parent.glob("*.bak")
    assert backup.read_text() == before
    assert done.stdout.startswith(f"Wrote the server 'shop' into {_shown(tmp_path, file)}. The file as it was: ")


def _shown(home: Path, file: str) -> str:
    return file if file in (".mcp.json", ".vscode/mcp.json", "mcp.json") else str(home / file)


@pytest.mark.process
def test_a_process_is_configured_with_absolute_paths_and_the_user(shop: dict[str, str], tmp_path: Path) -> None:
    done = config(shop, tmp_path, "cursor", "--user", "clerk")
    assert json.loads(done.stdout) == {
        "mcpServers": {
            "example-shop": {
                "command": sys.executable,
                "args": [str(ROOT / "manage.py"), "runmcp", "--transport", "stdio", "--user", "clerk"],
            }
        }
    }
    assert done.stderr == f"This belongs in {tmp_path}/.cursor/mcp.json; --write puts it there.\n"


@pytest.mark.process
def test_the_configured_process_serves_the_user(shop: dict[str, str], tmp_path: Path) -> None:
    import anyio
    from mcp import Client, StdioServerParameters

    entry = json.loads(config(shop, tmp_path, "inspector", "--user", "clerk").stdout)["mcpServers"]["example-shop"]

    async def tools() -> set[str]:
        server = StdioServerParameters(command=entry["command"], args=entry["args"], env=shop, cwd=tmp_path)
        async with Client(server) as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    assert "cancel_order" in anyio.run(tools)


def test_claude_code_is_shown_its_own_command() -> None:
    command = CLIENTS["claude-code"].shell("shop", Endpoint("http://localhost/mcp", "secret"))
    assert command is not None
    header = "Authorization: Bearer secret"
    assert shlex.split(command) == [
        *["claude", "mcp", "add", "--transport", "http", "shop", "http://localhost/mcp", "--header"],
        header,
    ]
    command = CLIENTS["claude-code"].shell("shop", Process("python", ["manage.py"], {"A": "b"}))
    assert command == "claude mcp add shop --env A=b -- python manage.py"


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["netscape"], "There is no client 'netscape'; allowed are claude-desktop, claude-code, vscode, cursor, codex"),
        (["codex", "--token", "x"], "--token is for --http: without it, --user says who calls."),
        (["codex", "--http", "URL", "--user", "clerk"], "--http names a running server: use --token instead of --user"),
        (["codex", "--user", "stranger"], "--user: there is no user 'stranger'."),
    ],
)
def test_a_mistake_is_one_line(shop: dict[str, str], tmp_path: Path, arguments: list[str], error: str) -> None:
    done = config(shop, tmp_path, *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(f"CommandError: {error}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.process
def test_a_file_that_is_not_json_is_left_alone(shop: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_text("{ this is mine")
    done = config(shop, tmp_path, "claude-code", "--write")
    assert done.returncode == 1
    assert done.stderr.startswith("CommandError: .mcp.json was not changed: it is not valid JSON: ")
    assert [file.name for file in tmp_path.iterdir()] == [".mcp.json"]
    assert (tmp_path / ".mcp.json").read_text() == "{ this is mine"


# The files


def test_the_file_keeps_its_mode_and_a_backup_of_what_it_held(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {}}')
    path.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    backup = write_entry(link, ["mcpServers", "shop"], ENTRY)
    assert backup is not None
    assert backup.read_text() == '{"mcpServers": {}}'
    assert json.loads(path.read_text()) == {"mcpServers": {"shop": ENTRY}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert link.is_symlink()
    assert write_entry(tmp_path / "new.json", ["mcpServers", "shop"], ENTRY) is None
    assert stat.S_IMODE((tmp_path / "new.json").stat().st_mode) == 0o600  # it may hold a token


def test_json_keeps_its_comments_trailing_commas_and_indentation() -> None:
    assert (
        with_json_entry(WITH_COMMENTS, ["servers", "shop"], {"url": "http://localhost/mcp"})
        == """\
{
    // The servers of this workspace
    "servers": {
        "other": { "url": "https://other.example/mcp" /* theirs */ }, // keep
        "shop": {
            "url": "http://localhost/mcp"
        }
    },
    "inputs": [],
}
"""
    )


def test_json_replaces_the_entry_of_the_same_name_and_nothing_else() -> None:
    first = with_json_entry(WITH_COMMENTS, ["servers", "shop"], {"url": "http://localhost/1"})
    second = with_json_entry(first, ["servers", "shop"], {"url": "http://localhost/2"})
    assert second == first.replace("http://localhost/1", "http://localhost/2")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "{ // nothing yet\n}",
        '\ufeff{"a": 1}',
        '{"a": {"b": [1, 2, {"servers": 3}]}, "c": "// no comment, \\" /* nor this */"}',
        '{\r\n\t"a": 1,\r\n\t"servers": {\r\n\t}\r\n}\r\n',
        '{"servers": {"shop": null}, "z": {}}',
    ],
)
def test_json_in_any_style_gets_the_entry(text: str) -> None:
    changed = with_json_entry(text, ["servers", "shop"], ENTRY)
    plain = changed.removeprefix("\ufeff").replace("// nothing yet", "")
    before = json.loads(text.removeprefix("\ufeff").replace("// nothing yet", "") or "{}")
    assert json.loads(plain) == {**before, "servers": {**before.get("servers", {}), "shop": ENTRY}}
    if "\r\n" in text:
        assert changed.count("\n") == changed.count("\r\n")


def test_json_whose_servers_are_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="the value that should hold 'shop' is not an object"):
        with_json_entry('{"servers": []}', ["servers", "shop"], ENTRY)


def test_toml_keeps_its_comments_and_tables() -> None:
    changed = with_toml_entry(CODEX, ["mcp_servers", "shop"], {**ENTRY, "env": {"A B": "c"}})
    assert changed.startswith(CODEX)
    assert tomllib.loads(changed) == {
        **tomllib.loads(CODEX),
        "mcp_servers": {
            **tomllib.loads(CODEX)["mcp_servers"],
            "shop": {**ENTRY, "env": {"A B": "c"}},
        },
    }


def test_toml_replaces_the_table_of_the_same_name_and_those_below_it() -> None:
    changed = with_toml_entry(CODEX, ["mcp_servers", "other"], {"url": "http://localhost/mcp"})
    assert (
        changed
        == """\
# My settings
model = "gpt"   # the default

[mcp_servers.other]
url = "http://localhost/mcp"

[profiles.fast]
model = "mini"
"""
    )


def test_toml_that_writes_its_servers_inline_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be set without changing anything else"):
        with_toml_entry('mcp_servers = { other = { command = "x" } }\n', ["mcp_servers", "shop"], ENTRY)
