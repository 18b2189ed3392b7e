"""The pages about testing, resuming and migrating, run; those about deployment are in test_deployment.py."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from anyio import to_thread
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.support.asgi_servers import address_of
from tests.support.documents import DOCS, blocks, environment_of_a_project, manage, project, write_file, write_files
from tests.support.harness import DEADLINE, INITIALIZE, INITIALIZED, Process, call, running, wait_until
from tests.support.private_redis import Redis
from tests.support.raw_http import Request, headers_of

pytestmark = pytest.mark.timeout(300)

TASKS = "Task.objects.create(title='one'); Task.objects.create(title='two', done=True)"


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = project(tmp_path_factory.mktemp("docs") / "mysite")
    manage(folder, "manage.py", "shell", "--verbosity", "0", "-c", TASKS)
    return folder


@pytest.mark.process
def test_the_tests_on_the_page_about_testing_pass(tutorial: Path) -> None:
    write_files(tutorial, "howto/testing.md")
    done = subprocess.run(
        [sys.executable, "manage.py", "test", "tasks"],
        cwd=tutorial,
        env=environment_of_a_project(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Ran 3 tests" in done.stderr
    assert "Traceback" not in done.stderr


class Caller:
    """An older client with a token, whose connections are cut."""

    def __init__(self, address: str, token: str) -> None:
        self._token = {"Authorization": f"Bearer {token}"}
        opening = self.sent(address, INITIALIZE)
        opening.read()
        self._session = opening.header("mcp-session-id")
        self.sent(address, INITIALIZED).read()

    def sent(self, address: str, message: dict[str, object]) -> Request:
        session = None if message is INITIALIZE else self._session
        return Request(address, "/mcp", "POST", {**headers_of(message, session), **self._token}, message)

    def lost_call(self, address: str) -> str:
        """A call of whose answer it remembers the first event alone; its id."""
        answer = self.sent(address, call(1, "open_tasks"))
        event_id = answer.event()["id"]
        assert b"1: one" in answer.read()
        return event_id

    def resumes(self, address: str, event_id: str) -> bool:
        """Whether it gets the result, and then the end of the stream."""
        headers = {"Accept": "text/event-stream", "Mcp-Session-Id": self._session, "Last-Event-ID": event_id}
        return b"1: one" in Request(address, "/mcp", headers={**headers, **self._token}).read()


@contextmanager
def worker(folder: Path, **env: str) -> Iterator[tuple[Process, str]]:
    command = [sys.executable, "-m", "uvicorn", "mysite.asgi:application", "--port", "0"]
    with running(command, env=environment_of_a_project(**env), cwd=folder) as process:
        yield process, address_of(process, "uvicorn")


@pytest.mark.process
def test_who_was_cut_off_resumes_from_memory_and_from_redis_at_another_worker(
    tutorial: Path, tmp_path: Path, redis_of_its_own: Redis
) -> None:
    folder = copy_with(tmp_path / "mysite", tutorial, "howto/resuming.md", "mysite/asgi.py")
    manage(folder, "manage.py", "shell", "--verbosity", "0", "-c", "User.objects.create_superuser('ann')")
    token = manage(folder, "manage.py", "mcptoken", "create", "ann", "--name", "test").strip()
    in_memory, in_redis = (
        code for _, code in blocks(DOCS / "howto" / "resuming.md") if code.startswith("# mysite/events.py")
    )
    write_file(folder, in_memory)
    with worker(folder) as (_, address):
        caller = Caller(address, token)
        assert caller.resumes(address, caller.lost_call(address))
    write_file(folder, in_redis)
    env = {"REDIS_URL": redis_of_its_own.url}
    with worker(folder, **env) as (process, address), worker(folder, **env) as (_, its_address):
        caller = Caller(address, token)
        event_id = caller.lost_call(address)
        assert caller.resumes(address, event_id)
        process.signal(signal.SIGKILL)
        process.wait()
        assert caller.resumes(its_address, event_id)


async def answers(folder: Path, arguments: list[str], *calls: str) -> list[object]:
    server = StdioServerParameters(command=sys.executable, args=arguments, env=environment_of_a_project(), cwd=folder)
    with anyio.fail_after(DEADLINE):
        async with Client(server) as client:
            results = [await client.call_tool(name, {}) for name in calls]
            return [result.structured_content["result"] for result in results]  # type: ignore[index]


@pytest.mark.process
def test_a_script_with_the_sdks_run_answers_the_same_after_it_has_moved(tutorial: Path, tmp_path: Path) -> None:
    script = copy_with(tmp_path / "before", tutorial, "howto/migrate-sdk.md", "server.py")
    moved = copy_with(tmp_path / "after", tutorial, "howto/migrate-sdk.md", "mysite/mcp.py")
    before = anyio.run(answers, script, ["server.py"], "count_tasks")
    assert before == anyio.run(answers, moved, ["manage.py", "runmcp"], "count_tasks") == [1]


@pytest.mark.process
def test_a_server_of_the_sdk_is_served_as_it_is(tutorial: Path, tmp_path: Path) -> None:
    folder = copy_with(tmp_path / "mysite", tutorial, "howto/migrate-sdk.md", "server.py")
    script = (folder / "server.py").read_text()
    _, moved, run = re.split(r"django\.setup\(\)\n|if __name__", script)
    (folder / "mysite" / "mcp.py").write_text(f"from asgiref.sync import sync_to_async\n{moved}")
    server = ["manage.py", "runmcp", "--server", "mysite.mcp.mcp"]
    assert "mcp.run()" in run
    assert anyio.run(answers, folder, server, "count_tasks") == [1]


@pytest.mark.process
def test_toolsets_of_django_mcp_server_have_become_functions(tutorial: Path, tmp_path: Path) -> None:
    folder = copy_with(
        tmp_path / "mysite", tutorial, "howto/migrate-django-mcp-server.md", "tasks/mcp.py", "mysite/mcp.py"
    )
    manage(folder, "manage.py", "shell", "--verbosity", "0", "-c", "User.objects.create_user('ann')")
    server = ["manage.py", "runmcp", "--user", "ann"]
    assert anyio.run(answers, folder, server, "count_tasks", "who_am_i") == [1, "ann"]


@pytest.mark.process
def test_a_notification_of_the_page_reaches_clients_in_another_process(tmp_path: Path, redis: Redis) -> None:
    folder = project(tmp_path / "mysite", "notifications.md")
    settings = folder / "mysite" / "settings.py"
    assert "redis://127.0.0.1:6379/0" in settings.read_text()
    settings.write_text(settings.read_text().replace("redis://127.0.0.1:6379/0", redis.url))
    manage(folder, "manage.py", "shell", "--verbosity", "0", "-c", TASKS)
    changes = """
import asyncio
from tasks.views import finish_all, reopen_all
finish_all(None)
asyncio.run(reopen_all(None))
Task.objects.get(pk=1).save()
"""

    def serving(*arguments: str) -> Client:
        arguments = ("manage.py", "runmcp", *arguments)
        environment = environment_of_a_project()
        return Client(StdioServerParameters(command=sys.executable, args=arguments, env=environment, cwd=folder))

    async def work() -> None:
        with anyio.fail_after(DEADLINE):
            async with serving() as client, serving("--server", "mysite.other.server") as of_the_sdk:
                for uri in ("task://1", "tasks://open"):
                    assert "one" in (await client.read_resource(uri)).contents[0].text  # type: ignore[union-attr]
                async with (
                    client.listen(resource_subscriptions=["task://1"]) as ours,
                    of_the_sdk.listen(resource_subscriptions=["tasks://open"]) as theirs,
                ):
                    await to_thread.run_sync(manage, folder, "manage.py", "shell", "--verbosity", "0", "-c", changes)
                    # The client has them as one while nobody looks.
                    assert (await anext(aiter(ours))).uri == "task://1"  # type: ignore[union-attr]
                    assert (await anext(aiter(theirs))).uri == "tasks://open"  # type: ignore[union-attr]

    anyio.run(work)

    printed = tmp_path / "printed"
    with (
        printed.open("w") as output,
        running([sys.executable, "listen.py"], env=environment_of_a_project(), cwd=folder, stdout=output),
    ):

        def is_told() -> bool:
            manage(folder, "manage.py", "shell", "--verbosity", "0", "-c", "Task.objects.get(pk=1).save()")
            return "ResourceUpdated(uri='tasks://open')" in printed.read_text()

        wait_until(is_told, "the client of the page gets a notification")


@contextmanager
def serving_http(folder: Path, *command: str) -> Iterator[tuple[Process, str]]:
    """A project's server on a free port, and its address."""
    serving = folder / "mysite" / "serving.py"
    serving.write_text(serving.read_text().replace("port=8000", "port=0"))
    command = command or ("manage.py", "runmcp", "--transport", "http")
    with running([sys.executable, *command], env=environment_of_a_project(), cwd=folder) as process:
        yield process, process.wait_for(r"is at (http://127.0.0.1:\d+)/mcp")[1]


def token_of_ann(folder: Path) -> str:
    manage(folder, "manage.py", "shell", "--verbosity", "0", "-c", "User.objects.create_user('ann')")
    return manage(folder, "manage.py", "mcptoken", "create", "ann").strip()


async def tools(url: str, token: str = "", call: str = "") -> list[str]:
    """The names of the tools at this address, after a call of one of them."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with anyio.fail_after(DEADLINE):
        async with (
            httpx2.AsyncClient(headers=headers, timeout=DEADLINE) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            if call:
                assert not (await client.call_tool(call, {})).is_error
            return [tool.name for tool in (await client.list_tools()).tools]


@pytest.mark.process
def test_the_page_about_several_servers_mounts_one_for_everybody_and_one_for_tokens(
    tutorial: Path, tmp_path: Path
) -> None:
    folder = copy_with(tmp_path / "mysite", tutorial, "howto/several-servers.md", "mysite/public.py", "mysite/asgi.py")
    token = token_of_ann(folder)
    with serving_http(folder) as (_, address):
        assert anyio.run(tools, f"{address}/public/mcp", "", "count_open_tasks") == ["count_open_tasks"]
        assert anyio.run(tools, f"{address}/mcp", token, "open_tasks") == ["open_tasks"]
        assert httpx2.post(f"{address}/mcp", json={}).status_code == 401
    over_stdio = ["manage.py", "runmcp", "--server", "mysite.public.server"]
    assert anyio.run(answers, folder, over_stdio, "count_open_tasks") == [1]


@pytest.mark.process
def test_the_middleware_and_the_route_of_the_page_about_the_sdks_features_work(tutorial: Path, tmp_path: Path) -> None:
    folder = copy_with(tmp_path / "mysite", tutorial, "howto/sdk-features.md", "mysite/mcp.py, at the end")
    token = token_of_ann(folder)
    page = (DOCS / "howto" / "sdk-features.md").read_text()
    with serving_http(folder) as (process, address):
        anyio.run(tools, f"{address}/mcp", token, "open_tasks")
        process.wait_for(r"ann called open_tasks: \d\.\d+ s")
        answer = httpx2.get(f"{address}/tasks/health")  # without a token
        assert f"GET /tasks/health\n{answer.text.replace('1', '2')}\n" in page
        assert httpx2.get(f"{address}/tasks/health", headers={"Host": "evil.example"}).status_code == 421
    over_stdio = [sys.executable, "manage.py", "runmcp"]
    with running(over_stdio, env=environment_of_a_project(), cwd=folder) as process:
        process.send(INITIALIZE, INITIALIZED, call(1, "open_tasks"))
        process.wait_for(r"AnonymousUser called open_tasks")


@pytest.mark.process
def test_the_script_of_its_own_serves_both_and_the_page_about_settings_makes_its_log_visible(
    tutorial: Path, tmp_path: Path
) -> None:
    folder = copy_with(tmp_path / "mysite", tutorial, "howto/script.md", "serve.py")
    for _, code in blocks(DOCS / "reference" / "settings.md"):
        if "LOGGING" in code:
            write_file(folder, code)
    token = token_of_ann(folder)
    with serving_http(folder, "serve.py") as (process, address):
        assert anyio.run(tools, f"{address}/mcp", token, "open_tasks") == ["open_tasks"]
        process.send(INITIALIZE, INITIALIZED, call(1, "open_tasks"))
        assert "serverInfo" in process.receive()["result"]
        assert process.receive()["result"]["structuredContent"] == {"result": ["1: one"]}
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        assert process.wait() == 0
    assert re.search(r"\d INFO mcp_serving\.server: Shutting down", process.errors)


def copy_with(folder: Path, tutorial: Path, page: str, *files: str) -> Path:
    """A copy of the tutorial's project with some files of a page."""
    shutil.copytree(tutorial, folder)
    for language, code in blocks(DOCS / page):
        if language == "python" and code.startswith(tuple(f"# {name}\n" for name in files)):
            write_file(folder, code)
    return folder


def test_django_mcp_server_and_this_package_cannot_share_an_environment() -> None:
    """Why the page says so: if the SDK has FastMCP again, this changes."""
    import mcp.server

    assert not hasattr(mcp.server, "FastMCP")
