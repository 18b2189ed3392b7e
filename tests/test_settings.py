"""Everything that can be found wrong is found before anything starts: one line, no traceback, no status 0."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import MANAGE, ROOT, environment, runmcp


def manage(*arguments: str, cwd: Path = ROOT, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MANAGE, *arguments],
        env=environment(**changes),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
    )


def settings(**values: Any) -> dict[str, str]:
    return {"TEST_MCP_SERVING": json.dumps({"SERVER": "tests.project.mcp.server", **values})}


WRONG_SETTINGS = {
    "unknown key": ({"SHUTDOWN_TIMEOUTS": 1}, r"unknown key 'SHUTDOWN_TIMEOUTS'.*Did you mean 'SHUTDOWN_TIMEOUT'"),
    "unknown transport": (
        {"TRANSPORT": "websocket"},
        r"'websocket' is not a transport; allowed are: stdio, http, both",
    ),
    "timeout of a wrong type": ({"SHUTDOWN_TIMEOUT": "soon"}, "the shutdown timeout is 'soon'"),
    "timeout that no float can hold": ({"SHUTDOWN_TIMEOUT": 10**400}, "the shutdown timeout is 10{400};"),
    "negative timeout": ({"SHUTDOWN_TIMEOUT": -1}, "the shutdown timeout is -1"),
    "module that does not exist": ({"SERVER": "tests.nowhere.server"}, "no module 'tests.nowhere'"),
    "channel layer that does not exist": (
        {"CHANNEL_LAYER": "redis"},
        "'redis' is not a channel layer; it must be one of CHANNEL_LAYERS, which is empty",
    ),
    "path of a wrong type": ({"SERVER": 7}, "7 is not a dotted path"),
    "path without a module": ({"HTTP_SERVER": "build"}, "'build' names no module"),
}


@pytest.mark.parametrize(("values", "message"), WRONG_SETTINGS.values(), ids=WRONG_SETTINGS)
def test_a_wrong_setting_is_one_line_in_runmcp_and_an_error_of_check(values: dict[str, Any], message: str) -> None:
    command = manage("runmcp", **settings(**values))
    assert command.returncode == 1
    assert command.stdout == ""
    assert len(command.stderr.splitlines()) == 1
    assert "MCP_SERVING" in command.stderr
    check = manage("check", **settings(**values))
    assert check.returncode == 1
    assert "mcp_serving.E001" in check.stderr
    for text in (command.stderr, check.stderr):
        assert re.search(message, text, re.IGNORECASE), text
        assert "Traceback" not in text


def test_a_setting_that_is_no_dict_is_refused() -> None:
    command = manage("runmcp", TEST_MCP_SERVING='["SERVER"]')
    assert "MCP_SERVING is ['SERVER']; it must be a dict" in command.stderr
    assert command.returncode == 1


WRONG_PATHS = {
    "attribute that does not exist": ("tests.project.mcp.nothing", 'does not define a "nothing"'),
    "not a server": ("tests.project.mcp.not_a_server", "'tests.project.mcp.not_a_server': .* not builtins.str"),
    "callable that fails": (
        "tests.project.mcp.make_nothing",
        r"callable 'tests\.project\.mcp\.make_nothing' failed: KeyError",
    ),
    "module that fails": ("tests.project.broken_module.server", "ZeroDivisionError.*broken_module.py, line 1"),
}


@pytest.mark.parametrize(("path", "message"), WRONG_PATHS.values(), ids=WRONG_PATHS)
def test_a_path_that_does_not_lead_to_a_server_is_one_line_in_runmcp_and_an_error_of_deploy_checks(
    path: str, message: str
) -> None:
    command = manage("runmcp", **settings(SERVER=path))
    assert command.returncode == 1
    assert len(command.stderr.splitlines()) == 1
    check = manage("check", "--deploy", **settings(SERVER=path))
    assert check.returncode == 1
    assert "mcp_serving.E003" in check.stderr
    for text in (command.stderr, check.stderr):
        assert re.search(message, text), text
        assert "Traceback" not in text


def test_the_place_of_a_mistake_is_named_only_where_it_is_in_the_project() -> None:
    elsewhere = manage("runmcp", "--server", "tests.nowhere.server")
    assert elsewhere.stderr == (
        "CommandError: --server: 'tests.nowhere.server' cannot be imported: there is no module 'tests.nowhere'.\n"
    )


def test_what_a_module_says_when_it_exits_is_said() -> None:
    command = manage("runmcp", "--server", "tests.project.exits.server")
    assert command.stderr == "set SHOP_URL first\n"
    assert command.returncode == 1


def test_the_http_servers_path_is_imported_by_deploy_checks() -> None:
    check = manage("check", "--deploy", **settings(HTTP_SERVER="tests.project.serving.nothing"))
    assert "mcp_serving.E004" in check.stderr


@pytest.mark.parametrize("transport", ["http", "both"])
def test_http_without_an_http_server_is_refused(transport: str) -> None:
    command = manage("runmcp", "--transport", transport, **settings())
    assert command.returncode == 1
    assert command.stderr.startswith("CommandError: ")
    assert "MCP_SERVING['HTTP_SERVER']" in command.stderr
    assert len(command.stderr.splitlines()) == 1


@pytest.mark.parametrize("path", ["tests.project.mcp:server", "server", "tests.nowhere.server"])
def test_an_option_that_is_no_path_is_named_in_one_line(path: str) -> None:
    command = manage("runmcp", "--server", path)
    assert command.returncode == 1
    assert command.stderr.startswith(f"CommandError: --server: {path!r} ")
    assert len(command.stderr.splitlines()) == 1


def test_without_debug_the_allowed_hosts_have_to_be_named_before_it_listens() -> None:
    command = manage("runmcp", "--transport", "http", TEST_DEBUG="0", TEST_ALLOWED_HOSTS="[]")
    assert command.returncode == 1
    assert command.stderr.startswith("CommandError: With DEBUG off, ALLOWED_HOSTS must have the host names")


def test_no_server_at_all_is_refused_with_what_to_set() -> None:
    command = manage("runmcp", TEST_MCP_SERVING="{}")
    assert command.returncode == 1
    assert "set MCP_SERVING = {'SERVER': 'project.mcp.server'} or give --server PATH" in command.stderr


def test_an_option_overrides_the_environment_which_overrides_the_setting() -> None:
    wrong_setting = settings(TRANSPORT="http")
    over_environment = manage("runmcp", "--transport", "stdio", MCP_TRANSPORT="http", **wrong_setting)
    assert "is on standard input and output" in over_environment.stderr
    over_setting = manage("runmcp", MCP_TRANSPORT=" STDIO ", **wrong_setting)
    assert "is on standard input and output" in over_setting.stderr
    assert over_environment.returncode == over_setting.returncode == 0


def test_a_wrong_transport_in_the_environment_says_where_it_comes_from() -> None:
    command = manage("runmcp", MCP_TRANSPORT="carrier pigeon")
    assert command.stderr.startswith("CommandError: MCP_TRANSPORT in the environment: 'carrier pigeon'")
    assert command.returncode == 1


def test_the_server_may_be_given_as_an_option_and_be_made_by_a_callable() -> None:
    command = manage("runmcp", "--server", "tests.project.mcp.make_server", TEST_MCP_SERVING="{}")
    assert "MCP server made-server (1 tool) is on standard input and output" in command.stderr
    assert command.returncode == 0


def test_a_server_that_offers_nothing_is_served_with_a_warning() -> None:
    command = manage("runmcp", "--server", "tests.project.mcp.empty")
    assert "empty-server has no tool, no resource and no prompt" in command.stderr
    assert command.returncode == 0


@pytest.mark.parametrize("name", ["mcp.py", "mcp/__init__.py"])
def test_a_module_named_mcp_that_hides_the_sdk_is_named(name: str, tmp_path: Path) -> None:
    module = tmp_path / name
    module.parent.mkdir(exist_ok=True)
    module.write_text("")
    path = f"{tmp_path}:{ROOT}"
    for arguments in (["runmcp"], ["check"]):
        command = manage(*arguments, PYTHONPATH=path)
        assert command.returncode == 1
        assert f"{module} hides the MCP SDK" in command.stderr
        assert "Traceback" not in command.stderr


def test_an_app_named_mcp_that_hides_the_sdk_is_named(tmp_path: Path) -> None:
    (tmp_path / "mcp").mkdir()
    (tmp_path / "mcp" / "__init__.py").write_text("")
    command = manage("check", PYTHONPATH=f"{tmp_path}:{ROOT}", TEST_APPS='["mcp"]')
    assert "hides the MCP SDK" in command.stderr
    assert command.returncode == 1


def test_atomic_requests_and_a_wsgi_runserver_are_told_by_check() -> None:
    databases = json.dumps({"default": {"ENGINE": "django.db.backends.sqlite3", "ATOMIC_REQUESTS": True}})
    check = manage("check", TEST_DATABASES=databases)
    assert check.returncode == 0
    assert "mcp_serving.I001" in check.stderr
    assert "mcp_serving.I002" in check.stderr
    assert "mcp_serving.I002" not in manage("check", TEST_APPS='["daphne"]').stderr


def test_the_checks_have_the_apps_name_for_a_tag() -> None:
    check = manage("check", "--tag", "mcp_serving", **settings(TRANSPORT="pigeon"))
    assert "mcp_serving.E001" in check.stderr


def test_deploy_checks_say_what_a_server_of_the_sdks_own_class_goes_without() -> None:
    check = manage("check", "--deploy")
    assert "mcp_serving.I003" in check.stderr
    assert "Use mcp_serving.MCPServer" in check.stderr


def test_deploy_checks_warn_of_write_tools_behind_handlers_that_cannot_ask_older_clients() -> None:
    gated = settings(SERVER="tests.project.gated.server")
    check = manage("check", "--deploy", TEST_ASGI_APPLICATION="tests.project.gated.application", **gated)
    warnings = [line for line in check.stderr.splitlines() if "mcp_serving.W001" in line]
    assert len(warnings) == 2
    for said in ("The handler at /stateless has stateless_http=True", "The handler at /json has json_response=True"):
        assert any(said in line for line in warnings)
    assert all("cannot use delete_everything through it" in line for line in warnings)


def test_deploy_checks_warn_of_a_channel_layer_that_reaches_no_other_process_once_debug_is_off() -> None:
    layers = json.dumps({"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}})
    for debug, warned in (("0", True), ("1", False)):
        check = manage("check", "--deploy", TEST_CHANNEL_LAYERS=layers, TEST_DEBUG=debug)
        assert ("mcp_serving.W003" in check.stderr) == warned
    assert "mcp_serving.W003" not in manage("check", "--deploy", TEST_DEBUG="0").stderr


IN_MEMORY = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
REDIS = {"default": {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": {"hosts": ["redis://127.0.0.1"]}}}
WEB_CONCURRENCY = {"WEB_CONCURRENCY": "2"}


@pytest.mark.parametrize(
    ("workers", "layers", "is_warned"),
    [
        (WEB_CONCURRENCY, {}, True),
        ({"GRANIAN_WORKERS": "4"}, IN_MEMORY, True),
        (WEB_CONCURRENCY, REDIS, False),
        ({"WEB_CONCURRENCY": "1"}, {}, False),
        ({"WEB_CONCURRENCY": ""}, {}, False),
        ({}, {}, False),
    ],
)
def test_deploy_checks_warn_of_sessions_in_several_workers_that_have_no_layer_in_common(
    workers: dict[str, str], layers: dict[str, Any], is_warned: bool
) -> None:
    gated = settings(SERVER="tests.project.gated.server")
    project = {"TEST_ASGI_APPLICATION": "tests.project.gated.application", "TEST_CHANNEL_LAYERS": json.dumps(layers)}
    check = manage("check", "--deploy", **gated, **project, **workers)
    warnings = [line for line in check.stderr.splitlines() if "mcp_serving.W002" in line]
    assert len(warnings) == (2 if is_warned else 0), check.stderr
    for name, number in workers.items():
        assert all(f"{name}={number} starts several workers" in line for line in warnings)
    assert not any("/stateless" in line for line in warnings)


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_channel_layer_that_cannot_be_made_is_one_line_in_runmcp(transport: str) -> None:
    layers = json.dumps({"default": {"BACKEND": "channels_redis.core.RedisChannelLayers"}})
    http = {"HTTP_SERVER": "tests.project.serving.build_daphne"} if transport == "http" else {}
    command = manage("runmcp", "--transport", transport, **settings(**http), TEST_CHANNEL_LAYERS=layers)
    assert command.returncode == 1
    assert re.fullmatch(r"CommandError: CHANNEL_LAYERS\['default'\]: .*RedisChannelLayers.*\n", command.stderr)


def test_deploy_checks_find_a_channel_layer_that_cannot_be_made() -> None:
    layers = json.dumps({"default": {"BACKEND": "channels_redis.core.RedisChannelLayers"}})
    check = manage("check", "--deploy", TEST_CHANNEL_LAYERS=layers)
    assert "mcp_serving.E007) CHANNEL_LAYERS['default']: " in check.stderr
    assert "RedisChannelLayers" in check.stderr
    assert "Traceback" not in check.stderr
    assert check.returncode == 1


def test_the_mcp_module_of_an_installed_app_is_imported_when_the_server_is_wanted() -> None:
    with_app = {"TEST_APPS": '["tests.project.reusable"]'}
    command = manage("runmcp", "--server", "tests.project.mcp.empty", **with_app)
    assert "MCP server empty-server (1 tool)" in command.stderr
    assert command.returncode == 0
    assert "imported" not in manage("check", **with_app).stdout
    failing = manage("runmcp", TEST_APPS='["tests.project.broken_app"]')
    assert "ZeroDivisionError" in failing.stderr
    assert failing.returncode == 1


def test_text_that_the_command_or_django_would_print_on_standard_output_goes_to_standard_error() -> None:
    with runmcp("--server", "tests.project.talkative.server") as process:
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        assert process.wait() == 0
        assert process.output() == b""
        assert "printed while the server module was imported" in process.errors


@pytest.mark.parametrize("command", ["check", "migrate"])
def test_having_the_app_installed_loads_neither_the_sdk_nor_daphne_in_other_commands(command: str) -> None:
    databases = json.dumps({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    script = (
        "import sys; from django.core.management import execute_from_command_line as run\n"
        f"run(['manage.py', {command!r}])\n"
        "sys.exit(str([name for name in ('mcp', 'daphne', 'twisted', 'anyio', 'channels') if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(TEST_DATABASES=databases),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stderr.splitlines()[-1] == "[]", done.stderr


def test_importing_the_package_touches_no_settings_and_loads_no_daphne() -> None:
    script = (
        "import sys, mcp_serving; mcp_serving.Server, mcp_serving.Transport, mcp_serving.StreamableHTTPHandler\n"
        "from django.conf import settings\n"
        "assert not settings.configured\n"
        "assert not {'daphne', 'twisted'} & set(sys.modules)"
    )
    env = environment()
    del env["DJANGO_SETTINGS_MODULE"]
    subprocess.run([sys.executable, "-c", script], env=env, cwd=ROOT, check=True, timeout=30)


def test_every_public_name_exists_and_an_unknown_one_does_not() -> None:
    import mcp_serving

    for name in mcp_serving.__all__:
        assert getattr(mcp_serving, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mcp_serving.nonsense  # noqa: B018


def test_stdio_loads_neither_daphne_nor_twisted_where_the_project_does_not_list_daphne() -> None:
    with runmcp("--server", "tests.project.talkative.server") as process:
        process.wait_for("is on standard input and output")
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        assert process.wait() == 0
        assert "of Daphne and Twisted it has loaded []" in process.errors
