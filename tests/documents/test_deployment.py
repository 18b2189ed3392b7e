"""The pages about deployment, run: their nginx files in a real nginx, their units' commands, their settings."""

from __future__ import annotations

import asyncio
import configparser
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import trustme
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestParams, ElicitResult

from mcp_serving.conf import DEFAULT_SHUTDOWN_TIMEOUT
from mcp_serving.server import CLEANUP_SECONDS
from tests.support.asgi_servers import address_of
from tests.support.documents import DOCS, blocks, environment_of_a_project, manage, project, write_files
from tests.support.harness import DEADLINE, Process, running
from tests.support.nginx import needs_nginx, nginx
from tests.support.private_redis import Redis

pytestmark = pytest.mark.timeout(300)

HOST = "mcp.example.org"
MODES = ["auto", "legacy"]

MORE_TOOLS = '''

import asyncio
import os
from pathlib import Path

from mcp.server.mcpserver import Context


@server.tool()
async def wait_for_file(ctx: Context, path: str) -> str:
    """Reports first, then waits for the test."""
    await ctx.report_progress(1, 2, "waiting")
    while not Path(path).exists():
        await asyncio.sleep(0.02)
    return "there it is"


@server.tool()
async def length(text: str) -> int:
    return len(text)


@server.tool()
async def who(ctx: Context) -> str:
    scope = ctx.request_context.request.scope
    return f"{get_user()} at {scope['client'][0]} by process {os.getpid()}"
'''


def block(page: str, language: str, name: str) -> str:
    """The block of a page that is this file."""
    (code,) = [code for kind, code in blocks(DOCS / page) if kind == language and code.startswith(f"# {name}")]
    return code


class MySite:
    """The project of the tutorial, of which each page gets a copy of its own; tokens of a superuser."""

    def __init__(self, folder: Path) -> None:
        self._folder = project(folder)
        with (self._folder / "mysite" / "mcp.py").open("a") as server:
            server.write(MORE_TOOLS)
        script = (
            "from mcp_serving.tokens.models import Token; ann = User.objects.create_superuser('ann'); "
            "[Task.objects.create(title=f'Task {number}') for number in range(40)]; "
            "[print(Token.objects.issue(ann, expires=None)[1]) for number in range(4)]"
        )
        self.tokens = manage(self._folder, "manage.py", "shell", "--verbosity", "0", "-c", script).split()

    def copy(self, folder: Path, *pages: str) -> Path:
        shutil.copytree(self._folder, folder)
        for page in pages:
            write_files(folder, page)
        return folder


@pytest.fixture(scope="module")
def mysite(tmp_path_factory: pytest.TempPathFactory) -> MySite:
    return MySite(tmp_path_factory.mktemp("template") / "mysite")


@contextmanager
def runmcp(folder: Path, command: list[str] | None = None, **options: Any) -> Iterator[Process]:
    env = environment_of_a_project(**options.pop("env", {}))
    command = command or [sys.executable, "manage.py", "runmcp", "--transport", "http"]
    with running(command, env=env, cwd=folder, **options) as process:
        process.wait_for(r"is at \S+:\S*/mcp")
        yield process


def port_of(process: Process) -> int:
    return int(process.wait_for(r"is at http://[\d.]+:(\d+)/")[1])


def as_clients_see_it(site: str, folder: Path, authority: trustme.CA, upstream: dict[str, int]) -> str:
    """The site of a page with the ports and files that the test has instead; ``PORT`` for its own port."""
    certificate = authority.issue_cert(HOST)
    certificate.cert_chain_pems[0].write_to_path(folder / "mysite.pem")
    certificate.private_key_pem.write_to_path(folder / "mysite.key")
    for old, new in {
        "listen 443": "listen 127.0.0.1:PORT",
        "/etc/ssl/certs/mysite.pem": str(folder / "mysite.pem"),
        "/etc/ssl/private/mysite.key": str(folder / "mysite.key"),
        **{f"127.0.0.1:{theirs}": f"127.0.0.1:{ours}" for theirs, ours in upstream.items()},
    }.items():
        assert old in site, old
        site = site.replace(old, new)
    return site


class Site:
    """A project behind nginx, and clients that reach it by its name."""

    def __init__(self, port: int, authority: trustme.CA) -> None:
        self.port = port
        self.url = f"https://{HOST}:{port}/mcp"
        self._context = ssl.create_default_context()
        authority.configure_trust(self._context)

    def http(self, bearer: str = "", **options: Any) -> httpx2.AsyncClient:
        if bearer:
            options["headers"] = {"Authorization": f"Bearer {bearer}", **options.get("headers", {})}
        return httpx2.AsyncClient(transport=_ByName(self._context), **{"timeout": DEADLINE, **options})

    def talk(self, work: Callable[[Client], Any], mode: str, bearer: str, **options: Any) -> Any:
        async def connected() -> Any:
            with anyio.fail_after(DEADLINE):
                async with (
                    self.http(bearer) as http,
                    Client(streamable_http_client(self.url, http_client=http), mode=mode, **options) as client,
                ):
                    return await work(client)

        return anyio.run(connected)


class _ByName(httpx2.AsyncHTTPTransport):
    """Goes to this machine, whatever the name says; the certificate is checked for the name."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(verify=context)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.extensions["sni_hostname"] = request.url.host
        request.url = request.url.copy_with(host="127.0.0.1")
        return await super().handle_async_request(request)


@pytest.fixture(scope="module")
def behind_nginx(tmp_path_factory: pytest.TempPathFactory, mysite: MySite) -> Iterator[Site]:
    """docs/howto/nginx.md, as it stands but for ports and paths."""
    base = tmp_path_factory.mktemp("nginx")
    folder = mysite.copy(base / "mysite", "howto/nginx.md")
    with served_by_nginx(folder, base) as site:
        yield site


@contextmanager
def served_by_nginx(folder: Path, base: Path) -> Iterator[Site]:
    """A project with the serving module of docs/howto/nginx.md, behind the nginx of that page."""
    authority = trustme.CA()
    serving = folder / "mysite" / "serving.py"
    serving.write_text(serving.read_text().replace("8000", "0"))
    site = block("howto/nginx.md", "nginx", "/etc/nginx/sites-available/mysite")
    with runmcp(folder) as process:
        site = as_clients_see_it(site, base, authority, {"8000": port_of(process)})
        with nginx(base / "nginx", site) as port:
            yield Site(port, authority)


@pytest.fixture
def bearer(mysite: MySite) -> str:
    return mysite.tokens[0]


@pytest.mark.process
@needs_nginx
@pytest.mark.parametrize("mode", MODES)
def test_behind_nginx_the_first_event_comes_before_the_tool_ends(
    behind_nginx: Site, bearer: str, mode: str, tmp_path: Path
) -> None:
    file = tmp_path / "file"

    async def reported(progress: float, total: float | None, message: str | None) -> None:
        file.touch()  # only now can the tool end

    async def work(client: Client) -> None:
        result = await client.call_tool("wait_for_file", {"path": str(file)}, progress_callback=reported)
        assert result.content[0].text == "there it is"  # type: ignore[union-attr]

    behind_nginx.talk(work, mode, bearer)


@pytest.mark.process
@needs_nginx
@pytest.mark.parametrize("mode", MODES)
def test_behind_nginx_the_question_of_a_write_tool_is_asked_and_answered(
    behind_nginx: Site, bearer: str, mode: str
) -> None:
    number = 1 + MODES.index(mode)
    asked = []

    async def accept(_: Any, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={})

    async def work(client: Client) -> None:
        result = await client.call_tool("finish_task", {"number": number})
        assert result.content[0].text == f"ann has finished task {number}."  # type: ignore[union-attr]

    behind_nginx.talk(work, mode, bearer, elicitation_callback=accept)
    assert len(asked) == 1


@pytest.mark.process
@needs_nginx
def test_behind_nginx_a_body_passes_up_to_the_bound_and_not_beyond(behind_nginx: Site, bearer: str) -> None:
    async def work(client: Client) -> None:
        result = await client.call_tool("length", {"text": "x" * 3_900_000})
        assert result.structured_content == {"result": 3_900_000}

    behind_nginx.talk(work, "auto", bearer)

    async def too_large() -> int:
        async with behind_nginx.http(bearer) as http:
            return (await http.post(behind_nginx.url, content=b"x" * 4_200_000)).status_code

    assert anyio.run(too_large) == 413


@pytest.mark.process
@needs_nginx
def test_behind_nginx_the_client_has_its_own_address_scheme_and_host(behind_nginx: Site, bearer: str) -> None:
    async def work(client: Client) -> None:
        result = await client.call_tool("who", {})
        assert result.content[0].text.startswith("ann at 127.0.0.1")  # type: ignore[union-attr]

    behind_nginx.talk(work, "auto", bearer)

    async def statuses(**headers: str) -> int:
        async with behind_nginx.http(bearer, headers=headers) as http:
            return (await http.post(behind_nginx.url, json={})).status_code

    own = f"https://{HOST}:{behind_nginx.port}"
    assert anyio.run(lambda: statuses(Origin=own)) not in (401, 403, 421)
    assert anyio.run(lambda: statuses(Origin=own.replace("https", "http"))) == 403
    forged = {"Origin": own.replace("https", "http"), "X-Forwarded-Proto": "http", "X-Forwarded-Host": HOST}
    assert anyio.run(lambda: statuses(**forged)) == 403
    assert anyio.run(lambda: statuses(Host="evil.example")) == 421
    assert anyio.run(lambda: statuses(**{"Daphne-Root-Path": "/mcp"})) not in (404, 421)


@pytest.mark.process
@needs_nginx
def test_behind_nginx_the_admin_is_at_its_place(behind_nginx: Site) -> None:
    async def work() -> httpx2.Response:
        async with behind_nginx.http() as http:
            return await http.get(f"https://{HOST}:{behind_nginx.port}/admin/login/")

    assert anyio.run(work).status_code == 200


@pytest.mark.process
@needs_nginx
def test_beside_a_site_on_gunicorn_nginx_sends_the_mcp_endpoint_to_its_own_process(
    tmp_path: Path, mysite: MySite, bearer: str
) -> None:
    folder = mysite.copy(tmp_path / "mysite", "howto/wsgi.md")
    serving = folder / "mysite" / "serving.py"
    serving.write_text(serving.read_text().replace("port=8001", "port=0"))
    (gunicorn,) = [
        code.removeprefix("$ ").split() for _, code in blocks(DOCS / "howto" / "wsgi.md") if "$ gunicorn" in code
    ]
    gunicorn = [sys.executable, "-m", *(part.replace(":8000", ":0") for part in gunicorn)]
    authority = trustme.CA()

    async def status(site: Site, path: str) -> int:
        async with site.http() as http:
            return (await http.get(f"https://{HOST}:{site.port}{path}")).status_code

    with runmcp(folder) as mcp, running(gunicorn, env=environment_of_a_project(), cwd=folder) as wsgi:
        ports = {
            "8001": port_of(mcp),
            "8000": int(wsgi.wait_for(r"Listening at: http://127.0.0.1:(\d+)")[1]),
        }
        site = block("howto/wsgi.md", "nginx", "/etc/nginx/sites-available/mysite")
        site = as_clients_see_it(site, tmp_path, authority, ports)
        with nginx(tmp_path / "nginx", site) as port:
            behind = Site(port, authority)
            assert anyio.run(status, behind, "/admin/login/") == 200
            for mode in MODES:
                behind.talk(process_and_question, mode, bearer, elicitation_callback=accept)
            wsgi.signal(signal.SIGTERM)
            wsgi.wait()
            assert anyio.run(status, behind, "/admin/login/") == 502
            behind.talk(process_and_question, "auto", bearer, elicitation_callback=accept)


# Several workers


@contextmanager
def two_processes(folder: Path) -> Iterator[dict[str, int]]:
    """The ports of two, by those that they have on the page."""
    with runmcp(folder, env={"PORT": "0"}) as first, runmcp(folder, env={"PORT": "0"}) as second:
        yield {"8001": port_of(first), "8002": port_of(second)}


def nginx_site(upstream: str) -> str:
    """The file of the page about nginx with an upstream of the page about workers in it."""
    _, _, server = block("howto/nginx.md", "nginx", "/etc/nginx/sites-available/mysite").partition("\n}\n")
    return block("howto/workers.md", "nginx", f"/etc/nginx/sites-available/mysite, {upstream}") + server


def without_redis(folder: Path) -> None:
    settings = folder / "mysite" / "settings.py"
    text, layers, _ = settings.read_text().partition("CHANNEL_LAYERS")
    assert layers
    settings.write_text(text)


def on_redis(folder: Path, redis: Redis) -> None:
    settings = folder / "mysite" / "settings.py"
    text = settings.read_text()
    assert "redis://127.0.0.1:6379/" in text
    settings.write_text(text.replace("redis://127.0.0.1:6379/", redis.url.removesuffix("0")))


@pytest.fixture(scope="module")
def any_worker(tmp_path_factory: pytest.TempPathFactory, mysite: MySite, redis: Redis) -> Iterator[Site]:
    """docs/howto/workers.md, as it stands but for ports and paths: two processes, and nginx goes round them."""
    base = tmp_path_factory.mktemp("any-worker")
    folder = mysite.copy(base / "mysite", "howto/nginx.md", "howto/workers.md")
    on_redis(folder, redis)
    authority = trustme.CA()
    with two_processes(folder) as ports:
        site = as_clients_see_it(nginx_site("instead of the upstream there"), base, authority, ports)
        with nginx(base / "nginx", site) as port:
            yield Site(port, authority)


SHARED_CACHE = """
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.filebased.FileBasedCache", "LOCATION": BASE_DIR / "cache"},
}
"""
"""The page demands a cache that the workers share."""


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory, mysite: MySite) -> Iterator[dict[str, Site]]:
    """The same without Redis, and for each way of telling clients apart an nginx in front of them."""
    base = tmp_path_factory.mktemp("workers")
    folder = mysite.copy(base / "mysite", "howto/nginx.md", "howto/workers.md")
    without_redis(folder)
    with (folder / "mysite" / "settings.py").open("a") as settings:
        settings.write(SHARED_CACHE)
    authority = trustme.CA()
    with two_processes(folder) as ports, ExitStack() as running:
        sites = {}
        for key in ("$http_authorization", "$remote_addr", "$http_mcp_session_id"):
            conf = nginx_site("with sticky routing").replace("$http_authorization", key)
            conf = as_clients_see_it(conf, base, authority, ports)
            sites[key] = Site(running.enter_context(nginx(base / key.strip("$"), conf)), authority)
        yield sites


async def process_and_question(client: Client) -> str:
    """Which process answers, always the same or not; a question is asked in between."""
    first = await client.call_tool("who", {})
    number = await client.call_tool("open_tasks", {})
    task = int(json.loads(number.content[0].text)[0].partition(":")[0])  # type: ignore[union-attr]
    result = await client.call_tool("finish_task", {"number": task})
    assert result.content[0].text == f"ann has finished task {task}."  # type: ignore[union-attr]
    return str(first.content[0].text)  # type: ignore[union-attr]


async def accept(_: Any, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={})


@pytest.mark.process
@needs_nginx
@pytest.mark.parametrize("mode", MODES)
def test_on_redis_any_worker_does_everything(any_worker: Site, mysite: MySite, mode: str) -> None:
    homes = set()
    for number, bearer in enumerate(mysite.tokens):

        async def processes(client: Client, calls: int = 4 + number) -> set[str]:
            return {(await client.call_tool("who", {})).content[0].text for _ in range(calls)}  # type: ignore[union-attr]

        any_worker.talk(process_and_question, mode, bearer, elicitation_callback=accept)
        seen = any_worker.talk(processes, mode, bearer)
        assert len(seen) == (1 if mode == "legacy" else 2)
        homes |= seen
    assert len(homes) == 2


@pytest.mark.process
@needs_nginx
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("key", ["$http_authorization", "$remote_addr"])
def test_a_client_that_nginx_leads_to_the_same_worker_can_do_everything(
    two_workers: dict[str, Site], mysite: MySite, key: str, mode: str
) -> None:
    site = two_workers[key]
    for bearer in mysite.tokens:
        processes = {site.talk(process_and_question, mode, bearer, elicitation_callback=accept) for _ in range(2)}
        assert len(processes) == 1


@pytest.mark.process
@needs_nginx
def test_a_client_of_2026_07_28_may_have_its_requests_anywhere(two_workers: dict[str, Site], bearer: str) -> None:
    site = two_workers["$http_mcp_session_id"]  # it has no session, so nginx goes round

    async def work(client: Client) -> set[str]:
        return {(await client.call_tool("who", {})).content[0].text for _ in range(6)}  # type: ignore[union-attr]

    assert len(site.talk(work, "auto", bearer)) == 2
    site.talk(process_and_question, "auto", bearer, elicitation_callback=accept)


@pytest.mark.process
@needs_nginx
def test_the_id_of_a_session_leads_nowhere_in_particular(two_workers: dict[str, Site], bearer: str) -> None:
    site = two_workers["$http_mcp_session_id"]

    def survives() -> bool:
        try:
            site.talk(lambda client: client.list_tools(), "legacy", bearer)
        except (MCPError, ExceptionGroup):  # as the SDK's client raises it
            return False
        return True

    assert not all(survives() for _ in range(12))


@pytest.mark.process
def test_uvicorns_workers_serve_clients_of_each_generation(tmp_path: Path, mysite: MySite, redis: Redis) -> None:
    folder = mysite.copy(tmp_path / "mysite", "howto/workers.md")
    on_redis(folder, redis)
    (command,) = [
        code.removeprefix("$ ").split() for _, code in blocks(DOCS / "howto" / "workers.md") if "uvicorn" in code
    ]
    command = [sys.executable, "-m", *("0" if part == "8000" else part for part in command)]
    headers = {"Authorization": f"Bearer {mysite.tokens[0]}"}

    async def work(address: str, mode: str) -> None:
        with anyio.fail_after(DEADLINE):
            async with (
                httpx2.AsyncClient(headers=headers) as http,
                Client(
                    streamable_http_client(f"{address}/mcp", http_client=http),
                    mode=mode,
                    elicitation_callback=accept,
                ) as client,
            ):
                await process_and_question(client)

    options: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, "start_new_session": True}
    with running(command, env=environment_of_a_project(), **options) as process:
        try:
            process.wait_for(r"(?s)startup complete.*startup complete")
            for mode in MODES:
                anyio.run(work, address_of(process, "uvicorn"), mode)
            process.signal(signal.SIGTERM)
            assert process.wait() == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its workers would outlive it


# systemd


def unit(name: str, page: str = "howto/systemd.md") -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, strict=True)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(block(page, "ini", f"/etc/systemd/system/{name}"))
    return parsed


@contextmanager
def handed_over(folder: Path, listening: socket.socket) -> Iterator[Process]:
    """The command of the unit with a socket as systemd hands it over: as descriptor 3, with a name."""
    python, *arguments = unit("mysite.service")["Service"]["ExecStart"].split()
    assert python.endswith("/.venv/bin/python")
    # The process that gets the socket is the one that LISTEN_PID names: the shell becomes Python.
    script = f'exec 3<&{listening.fileno()}; LISTEN_PID=$$ exec "$0" "$@"'
    command = ["bash", "-c", script, sys.executable, *arguments]
    options = {"env": {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "mysite.socket"}, "stdin": subprocess.DEVNULL}
    with runmcp(folder, command, pass_fds=[listening.fileno()], **options) as process:
        yield process


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)
        yield listening


@pytest.mark.process
def test_while_a_process_is_replaced_new_connections_wait_for_the_next(
    tmp_path: Path, mysite: MySite, listening: socket.socket
) -> None:
    folder = mysite.copy(tmp_path / "mysite", "howto/systemd.md")
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    headers = {"Authorization": f"Bearer {mysite.tokens[0]}"}
    file = tmp_path / "file"
    in_the_tool = asyncio.Event()

    async def call(tool: str, **arguments: str) -> str:
        async def reported(*_: Any) -> None:
            in_the_tool.set()

        async with (
            httpx2.AsyncClient(headers=headers, timeout=DEADLINE) as http,
            Client(streamable_http_client(address, http_client=http)) as client,
        ):
            result = await client.call_tool(tool, arguments, progress_callback=reported)
            return str(result.content[0].text)  # type: ignore[union-attr]

    async def work() -> None:
        with handed_over(folder, listening) as old:
            in_flight = asyncio.create_task(call("wait_for_file", path=str(file)))
            await in_the_tool.wait()
            old.signal(signal.SIGTERM)
            await asyncio.to_thread(old.wait_for, "Shutting down: received SIGTERM")
            await asyncio.sleep(0.3)  # it listens no longer, and the call is still in flight
            waiting = asyncio.create_task(call("who"))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            file.touch()
            assert await asyncio.to_thread(old.wait) == 0  # nothing was lost
        with handed_over(folder, listening) as new:
            assert await in_flight == "there it is"  # the SDK's client asks for the tool's schema afterwards
            assert (await waiting).endswith(f"by process {new.pid}")
            new.signal(signal.SIGTERM)
            assert await asyncio.to_thread(new.wait) == 0

    asyncio.run(work())


@pytest.mark.process
def test_twisted_removes_the_file_of_a_unix_socket_that_it_was_given(tmp_path: Path, mysite: MySite) -> None:
    """Why the page warns of it: if this fails, the warning may go."""
    folder = mysite.copy(tmp_path / "mysite", "howto/systemd.md")
    serving = folder / "mysite" / "serving.py"
    serving.write_text(serving.read_text().replace("domain=INET", "domain=UNIX"))
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(16)
        with handed_over(folder, listening) as process:
            process.signal(signal.SIGTERM)
            assert process.wait() == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("page", "name"), [("howto/systemd.md", "mysite.service"), ("howto/workers.md", "mysite@.service")]
)
def test_systemd_waits_longer_than_the_shutdown_may_take(page: str, name: str) -> None:
    service = unit(name, page)["Service"]
    assert float(service["TimeoutStopSec"]) > DEFAULT_SHUTDOWN_TIMEOUT + 3 * CLEANUP_SECONDS
    assert service["KillMode"] == "mixed"
    assert "--transport http" in service["ExecStart"]


@pytest.mark.process
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_has_nothing_against_the_units(tmp_path: Path) -> None:
    names = {
        "mysite.socket": "howto/systemd.md",
        "mysite.service": "howto/systemd.md",
        "mysite@.service": "howto/workers.md",
    }
    for name, page in names.items():
        text = block(page, "ini", f"/etc/systemd/system/{name}")
        (tmp_path / name).write_text(text.replace("/srv/mysite/.venv/bin/python", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(tmp_path / name for name in ("mysite.socket", "mysite.service"))],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if "mysite" in line]) == (0, [])
