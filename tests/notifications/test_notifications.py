"""Notifications that any process sends reach the clients of every process."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from tests.support.asgi_servers import serving
from tests.support.fork_server import OWN_IMPORTS
from tests.support.harness import (
    DEADLINE,
    INITIALIZE,
    INITIALIZED,
    MANAGE,
    MODERN_META,
    ROOT,
    Process,
    call,
    environment,
    runmcp,
)
from tests.support.http_client import Clients, Connection
from tests.support.private_redis import Redis
from tests.support.raw_http import routing

pytestmark = pytest.mark.process

SETTINGS = "tests.project.settings_with_changes"
ASGI = "tests.project.changes_asgi"
FENCE = "changes://orders/fence"
WANTED = [f"changes://orders/{name}" for name in ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "fence")]
LISTS = ["tools", "prompts", "resources"]
RESOURCES = "notifications/resources/list_changed"


def order(name: str) -> str:
    return f"changes://orders/{name}"


def listen(uris: list[str], request_id: int | str = "listen") -> dict[str, Any]:
    wanted = {"resourceSubscriptions": uris, **{f"{kind}ListChanged": True for kind in LISTS}}
    params = {"notifications": wanted, "_meta": MODERN_META}
    return {"jsonrpc": "2.0", "id": request_id, "method": "subscriptions/listen", "params": params}


def subscribe(uri: str, method: str = "resources/subscribe") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": f"{method} {uri}", "method": method, "params": {"uri": uri}}


def name_of(message: dict[str, Any]) -> str | None:
    """What a message tells of: a URI, or which list has changed."""
    if message.get("method") == "notifications/resources/updated":
        uri: str = message["params"]["uri"]
        return uri
    return message["method"] if message.get("method", "").endswith("list_changed") else None


Heard = AsyncIterator[dict[str, Any]]


async def modern_listener(clients: Clients, uris: list[str] = WANTED, path: str = "/mcp") -> Heard:
    connection = await clients.modern()
    message = listen(uris)
    connection.send("POST", path, message, **routing(message))
    events = connection.events(await connection.head())
    assert (await anext(events))["method"] == "notifications/subscriptions/acknowledged"
    return events


async def older_listener(clients: Clients, uris: list[str] = WANTED) -> Heard:
    return (await older_session(clients, uris))[1]


async def older_session(clients: Clients, uris: list[str] = WANTED) -> tuple[Connection, Heard]:
    connection = await clients.session()
    for uri in uris:
        (answer,) = (await connection.request("POST", "/mcp", subscribe(uri))).messages
        assert answer["result"] == {}
    stream = await clients.another(connection)
    stream.send("GET", "/mcp")
    return connection, stream.events(await stream.head())


async def of_stdio(process: Process) -> Heard:
    while True:
        yield await to_thread.run_sync(process.receive)


async def heard_until(fence: str, listener: Heard) -> list[str]:
    names: list[str] = []
    with anyio.fail_after(DEADLINE):
        async for message in listener:
            if (name := name_of(message)) == fence:
                return names
            if name is not None:
                names.append(name)
    raise AssertionError(f"The stream ended after {names}.")


async def each_hears(listeners: list[Heard], fence: str = FENCE) -> list[list[str]]:
    """What each has heard before the fence, side by side."""
    heard: list[list[str]] = [[] for _ in listeners]

    async def hear(number: int) -> None:
        heard[number] = await heard_until(fence, listeners[number])

    async with anyio.create_task_group() as group:
        for number in range(len(listeners)):
            group.start_soon(hear, number)
    return heard


class Site:
    """A project with several processes and one channel layer."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.env = {"DJANGO_SETTINGS_MODULE": SETTINGS, "TEST_SQLITE": str(folder / "db.sqlite3"), **env}
        self.manage("migrate", "--run-syncdb", "--verbosity", "0")

    def manage(self, *arguments: str) -> None:
        done = subprocess.run(
            [*MANAGE, *arguments],
            cwd=ROOT,
            env=environment(**self.env, **OWN_IMPORTS),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

    async def tell(self, *uris: str) -> None:
        """In a management command."""
        await to_thread.run_sync(self.manage, "tell", *uris)

    @contextmanager
    def stdio(self, *messages: dict[str, Any], answers: int) -> Iterator[Process]:
        with runmcp(env=self.env) as process:
            process.send(*messages)
            for _ in range(answers):
                process.receive()
            yield process


class Workers(Site):
    """Two web workers, and two processes that serve stdio, one to a client of each generation."""

    def __init__(self, folder: Path, redis: Redis, stack: ExitStack) -> None:
        super().__init__(folder, **redis.layers())
        self.processes, self.addresses = zip(
            *(stack.enter_context(serving(server, ASGI, env=self.env)) for server in ("runmcp", "uvicorn")),
            strict=True,
        )
        modern = self.stdio(listen(WANTED), answers=1)
        older = self.stdio(INITIALIZE, INITIALIZED, *map(subscribe, WANTED), answers=1 + len(WANTED))
        self.hosts = [stack.enter_context(modern), stack.enter_context(older)]

    async def listeners(self, stack: Any) -> list[Heard]:
        """Of each generation, at each process."""
        found = [of_stdio(host) for host in self.hosts]
        for address in self.addresses:
            clients = await stack.enter_async_context(Clients(address))
            found += [await modern_listener(clients), await older_listener(clients)]
        return found


@pytest.fixture(scope="module")
def workers(redis: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with ExitStack() as stack:
        yield Workers(tmp_path_factory.mktemp("events"), redis, stack)


async def view(clients: Clients, name: str, number: str) -> None:
    answer = await (await clients.connect()).request("GET", f"/{name}/{number}/")
    assert answer.status == 200, answer.body


async def tool(clients: Clients, name: str, uri: str) -> None:
    message = call(1, name, modern=True, uri=uri)
    answer = await (await clients.modern()).request("POST", "/mcp", message, **routing(message))
    assert not answer.messages[-1]["result"].get("isError"), answer.body


def run(work: Any) -> None:
    async def in_a_stack() -> None:
        async with AsyncExitStack() as stack:
            await work(stack)

    anyio.run(in_a_stack)


def test_a_notification_from_anywhere_reaches_each_subscriber_in_each_process_once(workers: Workers) -> None:
    async def work(stack: Any) -> None:
        listeners = await workers.listeners(stack)
        one, two = [await stack.enter_async_context(Clients(address)) for address in workers.addresses]
        await workers.tell(order("a"), order("b"))
        await workers.tell()  # the list of tools
        await view(one, "told", "c")
        await view(two, "atold", "d")
        await view(one, "told_in_the_loop", "e")
        await view(two, "told_in_the_loop", "f")
        await tool(one, "tell", order("g"))
        await tool(two, "atell", order("h"))
        await tool(one, "tell_from_a_thread", order("i"))
        await view(two, "asaved", "j")
        await workers.tell(FENCE)
        expected = [*map(order, "abcdefghij"), "notifications/tools/list_changed", RESOURCES]
        for heard in await each_hears(listeners):
            assert Counter(heard) == Counter(expected)

    run(work)


def test_subscribers_are_notified_after_the_commit_and_never_after_a_rollback(workers: Workers) -> None:
    async def work(stack: Any) -> None:
        one, two = [await stack.enter_async_context(Clients(address)) for address in workers.addresses]
        uris = [order(name) for name in ("w", "x", "y", "before-y", "fence")]
        listeners = [await make(each, uris) for each in (one, two) for make in (modern_listener, older_listener)]
        await view(one, "rolled_back", "w")
        await view(two, "arolled_back", "x")
        await view(one, "committed", "y")
        await workers.tell(FENCE)
        assert await each_hears(listeners) == [[order("before-y"), order("y")]] * 4

    run(work)


def test_saving_and_deleting_an_object_notifies_of_its_resource_and_of_the_list(workers: Workers) -> None:
    async def work(stack: Any) -> None:
        one, two = [await stack.enter_async_context(Clients(address)) for address in workers.addresses]
        listeners = [await make(two, [order("with%20a%20blank"), FENCE]) for make in (modern_listener, older_listener)]
        for change in ("created", "lined", "deleted"):
            await view(one, change, "with%20a%20blank")
        await workers.tell(FENCE)
        for heard in await each_hears(listeners):
            assert Counter(heard) == Counter({order("with%20a%20blank"): 4, RESOURCES: 2})

    run(work)


def test_a_server_of_the_sdks_class_with_the_bus_is_notified(workers: Workers) -> None:
    async def work(stack: Any) -> None:
        clients = await stack.enter_async_context(Clients(workers.addresses[1]))
        listener = await modern_listener(clients, ["elsewhere://1", FENCE], "/sdk")
        await workers.tell("elsewhere://1", FENCE)
        assert await heard_until(FENCE, listener) == ["elsewhere://1"]

    run(work)


def test_clients_are_not_notified_of_resources_that_their_server_does_not_have(workers: Workers) -> None:
    async def work(stack: Any) -> None:
        clients = await stack.enter_async_context(Clients(workers.addresses[0]))
        listener = await modern_listener(clients, ["elsewhere://1", FENCE])
        await workers.tell("elsewhere://1", FENCE)
        assert await heard_until(FENCE, listener) == []

    run(work)


def test_hundreds_of_subscribers_at_one_worker_get_each_notification_once(workers: Workers) -> None:
    async def work(stack: Any) -> None:
        clients = await stack.enter_async_context(Clients(workers.addresses[1]))
        uris = [order("a"), order("b"), FENCE]
        listeners = [await modern_listener(clients, uris) for _ in range(120)]
        listeners += [await older_listener(clients, uris) for _ in range(60)]
        await workers.tell(*uris)
        assert await each_hears(listeners) == [uris[:2]] * 180

    run(work)


def test_an_older_session_is_notified_of_its_subscriptions_until_it_unsubscribes(workers: Workers) -> None:
    async def work(stack: Any) -> None:
        clients = await stack.enter_async_context(Clients(workers.addresses[0]))
        session, listener = await older_session(clients, [order("a"), order("b"), FENCE])
        message = subscribe(order("a"), "resources/unsubscribe")
        assert (await session.request("POST", "/mcp", message)).messages[0]["result"] == {}
        await workers.tell(order("a"), order("b"), order("c"), FENCE)
        assert await heard_until(FENCE, listener) == [order("b")]

    run(work)


def test_subscriptions_are_announced_to_older_clients_only_if_they_can_be_notified(workers: Workers) -> None:
    async def work(stack: Any) -> None:
        clients = await stack.enter_async_context(Clients(workers.addresses[0]))
        for path, can in (("/mcp", True), ("/stateless", False)):
            connection = await clients.connect()
            (answer,) = (await connection.request("POST", path, INITIALIZE)).messages
            announced = answer["result"]["capabilities"]
            assert announced["resources"] == {"subscribe": can, "listChanged": can}
            assert announced["tools"] == announced["prompts"] == {"listChanged": can}
        message = subscribe(order("a"))
        refused = await (await clients.connect()).request("POST", "/stateless", message)
        assert refused.messages[0]["error"]["code"] == -32601

    run(work)


def test_nothing_fails_while_redis_is_unavailable_and_notifications_arrive_again_afterwards(
    redis_of_its_own: Redis, tmp_path: Path
) -> None:
    redis = redis_of_its_own
    site = Site(tmp_path, **redis.layers())

    async def work(stack: Any) -> None:
        one, two = [await stack.enter_async_context(Clients(address)) for _, address in served]
        uris = [order("a"), order("b"), order("again"), FENCE]
        listeners = [await make(each, uris) for each in (one, two) for make in (modern_listener, older_listener)]
        await site.tell(order("a"))
        redis.stop()
        for process, _ in served:
            await to_thread.run_sync(process.wait_for, "The channel layer cannot be used")
        for number in range(3):
            await view(one, "told", "b")
            await view(one, "created", f"away-{number}")
        redis.start()
        for process, _ in served:
            await to_thread.run_sync(process.wait_for, "The channel layer can be used again")
        await site.tell(order("again"), FENCE)
        heard = [Counter(each) for each in await each_hears(listeners)]
        # The worker of the view is told in any case; a session that was not sent it yet is sent it once.
        assert all(1 <= each[order("b")] <= 3 for each in heard[:2])
        assert all(each[order("a")] == each[order("again")] == 1 for each in heard)
        assert all(each[order("b")] == 0 for each in heard[2:])

    with (
        serving("runmcp", ASGI, env=site.env) as first,
        serving("uvicorn", ASGI, env=site.env) as second,
    ):
        served = [first, second]
        run(work)
        for process, _ in served:
            assert process.errors.count("The channel layer") == 2
            assert "Traceback" not in process.errors


def test_a_server_starts_and_ends_promptly_while_redis_is_unavailable(redis_of_its_own: Redis, tmp_path: Path) -> None:
    site = Site(tmp_path, **redis_of_its_own.layers())
    redis_of_its_own.stop()
    with runmcp(env=site.env) as process:
        process.send(INITIALIZE)
        process.receive()
        process.popen.stdin.close()  # type: ignore[union-attr]
        assert process.wait(timeout=5) == 0
        assert process.errors.count("The channel layer") == 1


def test_without_a_channel_layer_a_process_gets_its_own_notifications(tmp_path: Path) -> None:
    site = Site(tmp_path)

    async def work(stack: Any) -> None:
        clients = await stack.enter_async_context(Clients(address))
        listeners = [await make(clients, [order("a"), order("b"), FENCE]) for make in (modern_listener, older_listener)]
        await view(clients, "told", "a")
        await tool(clients, "tell_from_a_thread", order("b"))
        await tool(clients, "tell", FENCE)
        assert await each_hears(listeners) == [[order("a"), order("b")]] * 2

    with serving("uvicorn", ASGI, env=site.env) as (_, address):
        run(work)
