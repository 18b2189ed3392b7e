"""Every mistake in the settings is reported in one line before anything starts, by ``runmcp`` and by ``check``.

Most tests run in the process of the tests. A few real processes show that the command prints the line, exits with 1
and writes nothing to standard output.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import CheckMessage, run_checks
from django.core.management import CommandError, call_command
from django.test import override_settings

from mcp_serving import MCPServer, conf
from tests.support.fork_server import OWN_IMPORTS
from tests.support.harness import ROOT, environment, manage, runmcp

SERVER = {"SERVER": "tests.project.mcp.server"}


def check(*, deploy: bool = False, **changes: Any) -> list[CheckMessage]:
    """What ``manage.py check --tag mcp_serving`` finds with changed settings."""
    with override_settings(**changes):
        return list(run_checks(tags=["mcp_serving"], include_deployment_checks=deploy))


def messages(found: list[CheckMessage], number: str) -> list[str]:
    return [message.msg for message in found if message.id == f"mcp_serving.{number}"]


def refusal(*arguments: str, **changes: Any) -> str:
    """The error of ``runmcp`` in the process of the tests, which is one line."""
    with override_settings(**changes), pytest.raises(CommandError) as refused:
        call_command("runmcp", *arguments)
    message = str(refused.value)
    assert "\n" not in message
    return message


# The setting


WRONG_SETTINGS = {
    "unknown key": ({"SHUTDOWN_TIMEOUTS": 1}, r"unknown key 'SHUTDOWN_TIMEOUTS'.*Did you mean 'SHUTDOWN_TIMEOUT'"),
    "unknown transport": (
        {"TRANSPORT": "websocket"},
        r"'websocket' is not a transport; allowed are: stdio, http, both",
    ),
    "timeout of a wrong type": ({"SHUTDOWN_TIMEOUT": "soon"}, "the shutdown timeout is 'soon'"),
    "timeout too large for a float": ({"SHUTDOWN_TIMEOUT": 10**400}, "the shutdown timeout is 10{400};"),
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
    setting = {**SERVER, **values}
    (found,) = messages(check(MCP_SERVING=setting), "E001")
    for text in (refusal(MCP_SERVING=setting), found):
        assert text.startswith("MCP_SERVING")
        assert re.search(message, text, re.IGNORECASE), text


@pytest.mark.process
def test_runmcp_and_check_exit_with_1_and_one_line_for_a_wrong_setting() -> None:
    wrong = {"TEST_MCP_SERVING": json.dumps({**SERVER, "TRANSPORT": "websocket"})}
    command = manage("runmcp", **wrong)
    assert (command.returncode, command.stdout) == (1, "")
    assert command.stderr == (
        "CommandError: MCP_SERVING['TRANSPORT']: 'websocket' is not a transport; allowed are: stdio, http, both.\n"
    )
    checked = manage("check", **wrong)
    assert checked.returncode == 1
    assert "mcp_serving.E001" in checked.stderr
    assert "Traceback" not in checked.stderr


def test_a_setting_that_is_not_a_dict_is_refused() -> None:
    assert "MCP_SERVING is ['SERVER']; it must be a dict" in refusal(MCP_SERVING=["SERVER"])


def test_the_setting_is_read_once_and_again_after_a_change() -> None:
    with override_settings(MCP_SERVING={"SHUTDOWN_TIMEOUT": 1}):
        first = conf.configuration()
        assert conf.configuration() is first
        assert first.shutdown_timeout == 1.0
        with override_settings(
            MCP_SERVING={"SHUTDOWN_TIMEOUT": 2, "CHANNEL_LAYER": "other"}, CHANNEL_LAYERS={"other": {}}
        ):
            assert conf.configuration().shutdown_timeout == 2.0
        assert conf.configuration().shutdown_timeout == 1.0


# The server and its path


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
def test_a_path_to_something_else_than_a_server_is_one_line_in_runmcp_and_an_error_of_deploy_checks(
    path: str, message: str
) -> None:
    setting = {"SERVER": path}
    (found,) = messages(check(deploy=True, MCP_SERVING=setting), "E003")
    for text in (refusal(MCP_SERVING=setting), found):
        assert re.search(message, text), text


@pytest.mark.parametrize("path", ["tests.project.mcp", "tests.project.stated"], ids=["imported", "not imported"])
def test_a_path_to_a_module_is_refused_with_what_is_missing(path: str) -> None:
    expected = f"{path!r} is a module: name the object in the module, such as '{path}.server'."
    assert refusal(MCP_SERVING={"SERVER": path}) == expected
    (found,) = messages(check(deploy=True, MCP_SERVING={"SERVER": path}), "E003")
    assert found == f"MCP_SERVING['SERVER']: {expected}"


@pytest.mark.process
def test_an_error_in_the_projects_code_is_one_line_without_a_traceback() -> None:
    command = manage("runmcp", TEST_MCP_SERVING='{"SERVER": "tests.project.broken_module.server"}')
    assert command.returncode == 1
    assert re.fullmatch(r"CommandError: .*ZeroDivisionError.*broken_module.py, line 1\)\.\n", command.stderr)


def test_an_error_names_a_file_only_if_the_mistake_is_in_it() -> None:
    assert refusal("--server", "tests.nowhere.server") == (
        "--server: 'tests.nowhere.server' cannot be imported: there is no module 'tests.nowhere'."
    )


@pytest.mark.process
def test_the_text_of_a_module_that_exits_is_printed() -> None:
    command = manage("runmcp", "--server", "tests.project.exits.server")
    assert command.stderr == "set SHOP_URL first\n"
    assert command.returncode == 1


def test_without_a_server_the_error_says_what_to_set() -> None:
    assert "set MCP_SERVING = {'SERVER': 'project.mcp.server'} or give --server PATH" in refusal(MCP_SERVING={})


@pytest.mark.process
def test_the_server_may_be_an_option_and_may_be_created_by_a_callable() -> None:
    command = manage("runmcp", "--server", "tests.project.mcp.make_server", TEST_MCP_SERVING="{}")
    assert "MCP server made-server (1 tool) is on standard input and output" in command.stderr
    assert command.returncode == 0


@pytest.mark.process
def test_an_empty_server_is_served_with_a_warning() -> None:
    command = manage("runmcp", "--server", "tests.project.mcp.empty")
    assert "empty-server has no tool, no resource and no prompt" in command.stderr
    assert command.returncode == 0


# Options and the environment


@pytest.mark.parametrize("path", ["tests.project.mcp:server", "server", "tests.nowhere.server"])
def test_an_option_that_is_not_a_path_is_named_in_one_line(path: str) -> None:
    assert refusal("--server", path).startswith(f"--server: {path!r} ")


@pytest.mark.parametrize("transport", ["http", "both"])
def test_http_without_an_http_server_is_refused(transport: str) -> None:
    assert "MCP_SERVING['HTTP_SERVER']" in refusal("--transport", transport, MCP_SERVING=SERVER)


def test_an_option_overrides_the_environment_which_overrides_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = {**SERVER, "TRANSPORT": "http"}
    monkeypatch.setenv("MCP_TRANSPORT", " BOTH ")
    assert "Transport 'both'" in refusal(MCP_SERVING=setting)
    assert "Transport 'http'" in refusal("--transport", "http", MCP_SERVING=setting)
    monkeypatch.delenv("MCP_TRANSPORT")
    assert "Transport 'http'" in refusal(MCP_SERVING=setting)


def test_a_wrong_transport_in_the_environment_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MCP_TRANSPORT", "carrier pigeon")
    assert refusal().startswith("MCP_TRANSPORT in the environment: 'carrier pigeon'")


def test_without_debug_the_allowed_hosts_must_be_set_before_it_listens() -> None:
    message = refusal("--transport", "http", DEBUG=False, ALLOWED_HOSTS=[])
    assert message.startswith("With DEBUG off, ALLOWED_HOSTS must have the host names")


# The SDK


@pytest.mark.process
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


@pytest.mark.process
def test_an_app_named_mcp_that_hides_the_sdk_is_named(tmp_path: Path) -> None:
    (tmp_path / "mcp").mkdir()
    (tmp_path / "mcp" / "__init__.py").write_text("")
    command = manage("check", PYTHONPATH=f"{tmp_path}:{ROOT}", TEST_APPS='["mcp"]')
    assert "hides the MCP SDK" in command.stderr
    assert command.returncode == 1


# The other checks


def test_check_reports_atomic_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.DATABASES["default"], "ATOMIC_REQUESTS", True)
    (found,) = messages(check(), "I001")
    assert "only the sync functions of an mcp_serving.MCPServer run in a transaction" in found


def test_check_reports_a_runserver_that_does_not_serve_the_mount() -> None:
    assert messages(check(), "I002")
    assert not messages(check(INSTALLED_APPS=["daphne", "mcp_serving"]), "I002")


def test_deploy_checks_import_the_http_server() -> None:
    found = check(deploy=True, MCP_SERVING={**SERVER, "HTTP_SERVER": "tests.project.serving.nothing"})
    assert len(messages(found, "E004")) == 1


def test_deploy_checks_report_a_server_of_the_sdks_own_class() -> None:
    (found,) = [message for message in check(deploy=True, MCP_SERVING=SERVER) if message.id == "mcp_serving.I003"]
    assert "Use mcp_serving.MCPServer" in str(found.hint)


GATED = {
    "MCP_SERVING": {"SERVER": "tests.project.gated.server"},
    "ASGI_APPLICATION": "tests.project.gated.application",
}


def test_deploy_checks_warn_of_write_tools_behind_handlers_that_cannot_ask_older_clients() -> None:
    warnings = messages(check(deploy=True, **GATED), "W001")
    assert len(warnings) == 2
    for option in ("The handler at /stateless has stateless_http=True", "The handler at /json has json_response=True"):
        assert any(option in warning for warning in warnings)
    assert all("cannot use delete_everything through it" in warning for warning in warnings)


IN_MEMORY = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
REDIS = {"default": {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": {"hosts": ["redis://127.0.0.1"]}}}
MISSING = {"default": {"BACKEND": "channels_redis.core.RedisChannelLayers"}}


@pytest.mark.parametrize(
    ("layers", "debug", "is_warned"), [(IN_MEMORY, False, True), (IN_MEMORY, True, False), ({}, False, False)]
)
def test_deploy_checks_warn_of_an_in_memory_channel_layer_with_debug_off(
    layers: dict[str, Any], debug: bool, is_warned: bool
) -> None:
    found = check(deploy=True, CHANNEL_LAYERS=layers, DEBUG=debug)
    assert bool(messages(found, "W003")) == is_warned


PUBSUB = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": ["redis://127.0.0.1"]},
    }
}


@pytest.mark.parametrize(("layers", "is_told"), [(REDIS, True), (PUBSUB, False), (IN_MEMORY, False), ({}, False)])
def test_deploy_checks_recommend_the_pubsub_layer_for_sessions(layers: dict[str, Any], is_told: bool) -> None:
    found = messages(check(deploy=True, CHANNEL_LAYERS=layers, **GATED), "I004")
    assert bool(found) == is_told
    assert not any("/stateless" in message for message in found)
    assert not messages(check(CHANNEL_LAYERS=layers, **GATED), "I004")


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
def test_deploy_checks_warn_of_sessions_in_several_workers_without_a_shared_channel_layer(
    workers: dict[str, str], layers: dict[str, Any], is_warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WEB_CONCURRENCY", "GRANIAN_WORKERS"):
        monkeypatch.delenv(name, raising=False)
    for name, number in workers.items():
        monkeypatch.setenv(name, number)
    warnings = messages(check(deploy=True, CHANNEL_LAYERS=layers, **GATED), "W002")
    with_sessions = [
        place for place in ("/json", "/both-generations") if any(f"at {place}:" in each for each in warnings)
    ]
    assert len(with_sessions) == (2 if is_warned else 0)
    for name, number in workers.items():
        assert all(warning.startswith(f"{name}={number} starts several workers") for warning in warnings)
    assert not any("/stateless" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("backend", "is_warned"), [("locmem.LocMemCache", True), ("dummy.DummyCache", True), ("db.DatabaseCache", False)]
)
def test_deploy_checks_warn_of_write_tools_in_several_workers_without_a_shared_cache(
    backend: str, is_warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "2")
    caches = {"default": {"BACKEND": f"django.core.cache.backends.{backend}", "LOCATION": "cache"}}
    warnings = messages(check(deploy=True, CACHES=caches, **GATED), "W005")
    assert len(warnings) == is_warned
    assert all("WEB_CONCURRENCY=2 starts several workers, each with a default cache" in each for each in warnings)


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_channel_layer_that_cannot_be_created_is_one_line_in_runmcp(transport: str) -> None:
    setting = {**SERVER, "HTTP_SERVER": "tests.project.serving.build_daphne"}
    message = refusal("--transport", transport, MCP_SERVING=setting, CHANNEL_LAYERS=MISSING)
    assert re.fullmatch(r"CHANNEL_LAYERS\['default'\]: .*RedisChannelLayers.*", message)


def test_deploy_checks_report_a_channel_layer_that_cannot_be_created() -> None:
    (found,) = messages(check(deploy=True, MCP_SERVING=SERVER, CHANNEL_LAYERS=MISSING), "E007")
    assert found.startswith("CHANNEL_LAYERS['default']: ")
    assert "RedisChannelLayers" in found


# The mcp modules of apps


@pytest.mark.process
def test_the_mcp_module_of_an_installed_app_is_imported_when_the_server_is_needed() -> None:
    with_app = {"TEST_APPS": '["tests.project.reusable"]'}
    command = manage("runmcp", "--server", "tests.project.mcp.empty", **with_app)
    assert "MCP server empty-server (1 tool)" in command.stderr
    assert command.returncode == 0
    assert "imported" not in manage("check", **with_app).stdout


@pytest.mark.process
def test_an_mcp_module_that_cannot_be_imported_is_the_only_error_and_has_its_file_and_line() -> None:
    broken = {"TEST_APPS": '["tests.project.broken_app"]'}
    message = (
        "The module 'tests.project.broken_app.mcp' of an installed app cannot be imported: "
        f"ZeroDivisionError: division by zero ({ROOT}/tests/project/broken_app/mcp.py, line 1)."
    )
    command = manage("runmcp", **broken)
    assert (command.returncode, command.stderr) == (1, f"CommandError: {message}\n")
    checked = manage("check", "--deploy", **broken)
    assert checked.returncode == 1
    assert re.findall(r"mcp_serving\.E\d+.*", checked.stderr) == [f"mcp_serving.E008) {message}"]


def test_deploy_checks_warn_of_a_registry_that_no_server_includes() -> None:
    app = "tests.project.apps.with_a_registry"
    project = {"MCP_SERVING": SERVER, "INSTALLED_APPS": ["mcp_serving", app], "ASGI_APPLICATION": None}
    assert messages(check(deploy=True, **project), "W004") == [
        f"No server includes the registry {app}.mcp.registry: clients do not see list_nothing."
    ]
    from tests.project.apps.with_a_registry.mcp import registry

    MCPServer("including").include(registry)
    assert not messages(check(deploy=True, **project), "W004")


@pytest.mark.process
def test_with_debug_a_line_names_the_unapplied_migrations(tmp_path: Path) -> None:
    env = {"DJANGO_SETTINGS_MODULE": "tests.project.settings_with_users", "TEST_SQLITE": str(tmp_path / "db")}
    with runmcp(env=env) as process:
        hint = process.wait_for(r"You have \d+ unapplied migration\(s\).*")[0]
    assert "for app(s): auth, contenttypes, sessions. Run 'python manage.py migrate' to apply them." in hint


# What is imported, and where text is printed


@pytest.mark.process
def test_text_that_the_project_or_django_prints_goes_to_standard_error() -> None:
    with runmcp("--server", "tests.project.talkative.server", env=OWN_IMPORTS) as process:
        process.wait_for("is on standard input and output")
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        assert process.wait() == 0
        assert process.output() == b""
        assert "printed while the server module was imported" in process.errors
        # And this project, whose INSTALLED_APPS has no "daphne", has not loaded it for stdio.
        assert "of Daphne and Twisted it has loaded []" in process.errors


@pytest.mark.process
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
        timeout=60,
    )
    assert done.stderr.splitlines()[-1] == "[]", done.stderr


@pytest.mark.process
def test_importing_the_package_touches_no_settings_and_loads_no_daphne() -> None:
    script = (
        "import sys, mcp_serving; mcp_serving.Server, mcp_serving.Transport, mcp_serving.StreamableHTTPHandler\n"
        "from django.conf import settings\n"
        "assert not settings.configured\n"
        "assert not {'daphne', 'twisted'} & set(sys.modules)"
    )
    env = environment()
    del env["DJANGO_SETTINGS_MODULE"]
    subprocess.run([sys.executable, "-c", script], env=env, cwd=ROOT, check=True, timeout=60)


def test_every_public_name_exists_and_an_unknown_name_is_an_attribute_error() -> None:
    import mcp_serving

    for name in mcp_serving.__all__:
        assert getattr(mcp_serving, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mcp_serving.nonsense  # noqa: B018
