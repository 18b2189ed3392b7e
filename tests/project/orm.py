"""An MCP server whose handlers use the ORM, on the PostgreSQL that the tests start.

Most handlers return the process id of their database connection. With ``wait`` their query waits for the latch
of tests/support/postgres.py, which the test holds: how many are held up, and what is answered meanwhile, is then exact.
"""

import asyncio
import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

from django.db import connection, models, transaction
from django.db.backends.signals import connection_created
from django.db.models import Func, QuerySet, Value
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import Resolve
from starlette.responses import PlainTextResponse

from mcp_serving.tools.server import MCPServer
from tests.project.notes import note
from tests.project.things.models import Thing

LATCH = 4711

hops: list[str] = []


def count_hops() -> None:
    """Note each start of a thread, and each call that is handed to a thread pool."""
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    def counted_start(self: threading.Thread) -> None:
        hops.append(f"started {self.name}")
        start(self)

    def counted_submit(self: ThreadPoolExecutor, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        hops.append("submitted a call")
        return submit(self, fn, *args, **kwargs)

    threading.Thread.start = counted_start  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = counted_submit  # type: ignore[assignment, method-assign]


count_hops()


class Opened:
    """Every connection that the process has opened, and how many it has had open at once.

    Exact, as pg_stat_activity is not: a connection is still listed there for a moment after it was closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[Any] = []
        self.peak = 0

    def __call__(self, connection: Any, **_: Any) -> None:
        with self._lock:
            self._open = [each for each in self._open if not each.closed]
            self._open.append(connection.connection)
            self.peak = max(self.peak, len(self._open))


opened = Opened()
connection_created.connect(opened)

server = MCPServer("orm-server", max_threads=int(os.environ.get("TEST_MAX_THREADS", "4")))


in_flight: list[int] = []


async def count_in_flight(ctx: Any, call_next: Any) -> Any:
    in_flight.append(1)
    try:
        return await call_next(ctx)
    finally:
        in_flight.pop()


server.middleware.append(count_in_flight)


def the_one(wait: bool) -> QuerySet[Thing]:
    found = Thing.objects.filter(name="the one").annotate(
        backend=Func(function="pg_backend_pid", output_field=models.IntegerField())
    )
    if wait:
        latch = Func(Value(LATCH), function="pg_advisory_xact_lock_shared", output_field=models.TextField())
        found = found.annotate(latch=latch)
    return found


def query(wait: bool) -> int:
    backend: int = the_one(wait).get().backend  # type: ignore[attr-defined]
    return backend


async def aquery(wait: bool) -> int:
    thing: Any = await the_one(wait).aget()
    backend: int = thing.backend
    return backend


# A handler of each kind


@server.tool()
def sync_tool(wait: bool = False) -> int:
    note("sync_tool ran")
    return query(wait)


@server.tool()
async def async_tool(wait: bool = False) -> int:
    return await aquery(wait)


@server.tool()
def raising_tool(wait: bool = False) -> int:
    query(wait)
    raise RuntimeError("after its query")


@server.tool()
async def raising_async_tool(wait: bool = False) -> int:
    await aquery(wait)
    raise RuntimeError("after its query")


def resolver(wait: bool) -> int:
    return query(wait)


async def async_resolver(wait: bool) -> int:
    return await aquery(wait)


@server.tool()
def resolving_tool(resolved: Annotated[int, Resolve(resolver)], wait: bool = False) -> int:
    return resolved


@server.tool()
async def async_resolving_tool(resolved: Annotated[int, Resolve(async_resolver)], wait: bool = False) -> int:
    return resolved


def confirm(wait: bool) -> str:
    return f"Use {the_one(wait).get()}?"


async def async_confirm(wait: bool) -> str:
    return f"Use {await the_one(wait).aget()}?"


@server.write_tool(confirm=confirm)
def write_tool(wait: bool = False) -> int:
    return query(wait=False)


@server.write_tool(confirm=async_confirm)
async def async_write_tool(wait: bool = False) -> int:
    return await aquery(wait=False)


@server.resource("orm://sync")
def sync_resource() -> str:
    return str(query(wait=False))


@server.resource("orm://async")
async def async_resource() -> str:
    return str(await aquery(wait=False))


@server.resource("orm://sync/{wait}")
def sync_template(wait: bool) -> str:
    return str(query(wait))


@server.resource("orm://async/{wait}")
async def async_template(wait: bool) -> str:
    return str(await aquery(wait))


@server.prompt()
def sync_prompt(wait: bool = False) -> str:
    return str(query(wait))


@server.prompt()
async def async_prompt(wait: bool = False) -> str:
    return str(await aquery(wait))


# Transactions


@server.tool()
def add_in_a_transaction(name: str, fail: bool) -> bool:
    """Returns whether it was in a transaction before it began one."""
    before = connection.in_atomic_block
    with transaction.atomic():
        Thing.objects.create(name=name)
        transaction.on_commit(lambda: note(f"{name} committed, in a transaction: {connection.in_atomic_block}"))
        note(f"{name} added")
        if fail:
            raise RuntimeError("inside the transaction")
    return before


@server.tool()
async def add_in_a_transaction_from_async(name: str, fail: bool) -> bool:
    from asgiref.sync import sync_to_async

    return await sync_to_async(add_in_a_transaction)(name, fail)


@server.tool()
def add(name: str, fail: bool) -> bool:
    """Returns whether it was in a transaction."""
    Thing.objects.create(name=name)
    if fail:
        raise RuntimeError("after the insert")
    return connection.in_atomic_block


@transaction.non_atomic_requests
def _add(name: str, fail: bool) -> bool:
    return add(name, fail)


server.add_tool(functools.partial(_add, fail=False), "add_outside_of_transactions")


@server.tool()
def leave_a_transaction_open(name: str) -> None:
    transaction.set_autocommit(False)
    Thing.objects.create(name=name)


# What costs a thread


@server.tool()
async def no_database() -> list[str]:
    """The hops between threads that the process has made so far."""
    await asyncio.sleep(0)
    return hops


@server.tool()
async def most_connections() -> int:
    """How many connections the process has had open at once."""
    return opened.peak


@server.tool()
async def calls_in_flight() -> int:
    """How many calls are being served, this one among them."""
    return len(in_flight)


@server.tool()
def sync_without_database() -> None:
    """Only the hop that a sync function costs anyway."""


# Who calls, found with the ORM


class Caller:
    """A user, as far as a token needs one."""

    pk = 1
    is_active = is_authenticated = True
    is_anonymous = False


class AnyToken:
    """ "slow" waits for the latch, any other token does not."""

    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id=token, scopes=[])


def find_user(token: AccessToken) -> Caller:
    query(token.token == "slow")
    return Caller()


async def afind_user(token: AccessToken) -> Caller:
    await aquery(token.token == "slow")
    return Caller()


@server.custom_route("/backend", methods=["GET"])
async def backend(request: Any) -> PlainTextResponse:
    return PlainTextResponse(str(await aquery(False)))


def build_daphne() -> Any:
    import json

    from channels.routing import ProtocolTypeRouter, URLRouter
    from daphne.server import Server
    from django.core.asgi import get_asgi_application

    from mcp_serving import StreamableHTTPHandler

    get_asgi_application()
    handlers = {
        "mcp": StreamableHTTPHandler(server, public=True),
        "by-token": StreamableHTTPHandler(server, auth=AnyToken(), user_for_token=find_user),
        "by-token-async": StreamableHTTPHandler(server, auth=AnyToken(), user_for_token=afind_user),
    }
    routes = [route for path, handler in handlers.items() for route in handler.urlpatterns(path)]
    application = ProtocolTypeRouter({"http": URLRouter(routes)})
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))
