"""Hostile and broken requests by the thousand, as a web server would bring them: nothing fails, nothing stays behind.

They are the same in each run; ``make fuzz`` sends others, and more.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from mcp_serving import sdk
from mcp_serving.asgi import lifecycle
from mcp_serving.runtime import runtimes
from tests.project import fuzzed_asgi
from tests.support import in_django  # noqa: F401 - sets Django up
from tests.support.fuzzing import PATHS, Header, Request, cases, filled
from tests.support.harness import INITIALIZE, INITIALIZED, call
from tests.support.raw_http import headers_of

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "20000"))
"""So many at least, shared out to the handlers."""
SEED = int(os.environ.get("FUZZ_SEED", "0"))
DEADLINE = 20.0
QUIET = 0.005
"""A stream is idle after two waits of this many seconds without a message. One is not enough: perhaps the process did
not run."""

pytestmark = [
    pytest.mark.fuzz,
    pytest.mark.timeout(900 + REQUESTS // 10),
    # The SDK leaves the streams of a request whose client was gone at once to the garbage collector.
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]


def fuzz(
    strategy: st.SearchStrategy[Any], run: Callable[[Any], None], done: Callable[[], bool], series: int = 0
) -> None:
    """Run with values of the strategy until it is done; a value that fails is made small before it is shown."""
    options = settings(
        max_examples=200, deadline=None, database=None, print_blob=False, suppress_health_check=list(HealthCheck)
    )
    for number in itertools.count(10_000 * SEED + 1000 * series):
        if done():
            return
        seed(number)(options(given(value=strategy)(lambda value: run(value))))()


class Errors(logging.Handler):
    """What is logged as an error, or with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self.texts.append(logging.Formatter().format(record))


class Answering:
    """One request at a handler, as a web server would bring it."""

    def __init__(self, request: Request, known: dict[str, str]) -> None:
        self.request = request
        self.sent: list[Any] = []
        self._last_piece = asyncio.Event()
        self._gone = asyncio.Event()
        self._moved = asyncio.Event()
        body = filled(request.body, known)
        size = max(1, -(-len(body) // request.parts))
        pieces = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
        self._incoming = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        self._incoming[-1]["more_body"] = False
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": request.method,
            "path": request.path,
            "raw_path": request.path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name, filled(value, known)) for name, value in request.headers],
            "client": ("127.0.0.1", 5000),
            "server": ("localhost", 80),
        }
        self.task = asyncio.create_task(fuzzed_asgi.handlers[request.path[1:]](scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if self._incoming and not self._gone.is_set():
            if len(self._incoming) == 1 and self.request.held:
                await self._last_piece.wait()
            if len(self._incoming) > 1 or not self.request.breaks_off:
                return self._incoming.pop(0)
        else:
            await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        self._moved.set()
        if len(self.sent) > self.request.reads or self._is_complete:
            self._gone.set()

    @property
    def _is_complete(self) -> bool:
        return self.sent[-1]["type"] == "http.response.body" and not self.sent[-1].get("more_body")

    async def settle(self) -> None:
        """Return when the request is answered, or its stream is idle."""
        end = time.monotonic() + DEADLINE
        quiet = 0
        while not self.task.done():
            self._moved.clear()
            moved = asyncio.ensure_future(self._moved.wait())
            await asyncio.wait({self.task, moved}, timeout=QUIET, return_when=asyncio.FIRST_COMPLETED)
            quiet = 0 if moved.done() else quiet + 1
            moved.cancel()
            if quiet >= 2 and (self.request.may_stand or self.request.held):
                return
            assert time.monotonic() < end, "no answer"

    def send_last_piece(self) -> None:
        self._last_piece.set()

    async def finish(self) -> None:
        """Let the client leave."""
        self.send_last_piece()
        self._gone.set()
        await asyncio.wait({self.task}, timeout=DEADLINE)
        assert self.task.done(), "goes on after its client has left"
        self.task.result()
        left = self.request.may_stand or self.request.held or self.request.breaks_off
        assert self.sent or left, "not answered"
        starts = [message for message in self.sent if message["type"] == "http.response.start"]
        assert len(starts) == bool(self.sent), "answered twice"
        for start in starts:
            assert start["status"] < 500 or start["status"] == 503, start
            assert not re.search(rb"[\r\n\0]", b"".join(itertools.chain(*start["headers"])))

    def header(self, name: bytes) -> str:
        return dict(self.sent[0]["headers"]).get(name, b"").decode() if self.sent else ""

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])


class Fuzzed:
    """The handlers of tests/project/fuzzed_asgi.py, in an event loop of their own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.requests: Counter[str] = Counter()
        self.errors = Errors()

    def run(self, case: list[Request]) -> None:
        self.loop.run_until_complete(self._run(case))
        texts, self.errors.texts = self.errors.texts, []
        assert not texts, "\n".join(texts)

    async def _run(self, case: list[Request]) -> None:
        known: dict[str, str] = {}
        standing: list[Answering] = []
        try:
            for request in case:
                self.requests[request.path] += 1
                await self._open_sessions(request, known)
                answering = Answering(request, known)
                await answering.settle()
                for each in standing:
                    each.send_last_piece()
                if answering.task.done() or not (request.lingers or request.held):
                    await answering.finish()
                else:
                    standing.append(answering)
                self._remember(answering, known)
        finally:
            for each in standing:
                await each.finish()
            for name in {"mine", "other"} & known.keys():
                await self.ask(case[0].path, "DELETE", None, known[name])

    async def _open_sessions(self, request: Request, known: dict[str, str]) -> None:
        """Those that the request speaks of."""
        text = b" ".join([request.body, *(value for _, value in request.headers)])
        for name in ("mine", "ended", "foreign"):
            if name in known or f"@{name}".encode() not in text:
                continue
            path = ("/public" if request.path == "/token" else "/token") if name == "foreign" else request.path
            session = (await self.ask(path, "POST", INITIALIZE)).header(b"mcp-session-id")
            if not session:
                continue  # a handler without sessions
            known[name] = session
            await self.ask(path, "POST", INITIALIZED, session)
            if name != "mine":
                await self.ask(path, "DELETE", None, session)

    @staticmethod
    def _remember(answering: Answering, known: dict[str, str]) -> None:
        """What the answer tells that a further request can use."""
        told = {"event": rb"id: (\S+)", "state": rb'"requestState":"([^"]+)', "question": rb'"inputRequests":{"([^"]+)'}
        for name, pattern in told.items():
            if found := re.search(pattern, answering.body):
                known[name] = found[1].decode("latin-1")
        if session := answering.header(b"mcp-session-id"):
            known["other"] = session

    async def ask(self, path: str, method: str, message: Any, session: str | None = None) -> Answering:
        """What a decent client would."""
        headers: list[Header] = [(b"host", b"localhost"), (b"authorization", b"Bearer one")]
        if message is not None:
            headers += [(name.lower().encode(), value.encode()) for name, value in headers_of(message).items()]
        if session:
            headers.append((b"mcp-session-id", session.encode()))
        body = b"" if message is None else json.dumps(message).encode()
        answering = Answering(Request(method, path, tuple(headers), body), {})
        await answering.settle()
        await answering.finish()
        return answering

    async def use(self, path: str) -> tuple[int, int, int]:
        """Let decent clients of both generations call a tool; what the process holds afterwards."""
        opened = await self.ask(path, "POST", INITIALIZE)
        session = opened.header(b"mcp-session-id")
        await self.ask(path, "POST", INITIALIZED, session)
        for message in (call(1, "line", line={"number": 42}), call(1, "line", modern=True, line={"number": 42})):
            answer = await self.ask(path, "POST", message, session if "_meta" not in message["params"] else None)
            assert b"42" in answer.body, answer.body
        if session:
            await self.ask(path, "DELETE", None, session)
        return await self._held()

    async def _held(self) -> tuple[int, int, int]:
        """Tasks, sessions and exchanges, once what ends by itself has ended."""
        # By their type: isinstance() asks a lazy user of another test for its class, and so queries the database.
        managers = [each for each in gc.get_objects() if issubclass(type(each), StreamableHTTPSessionManager)]
        for _ in range(100):
            await asyncio.sleep(0.1)
            sessions = sum(len(sdk.open_sessions(manager)) for manager in managers)
            if not sessions:
                break
        gc.collect()
        # What served a session last, such as a thread, may still refer to it.
        assert sum(issubclass(type(each), StreamableHTTPServerTransport) for each in gc.get_objects()) < 10
        return len(asyncio.all_tasks()), sessions, sum(len(runtime.in_flight.running) for runtime in runtimes())


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Fuzzed]:
    fuzzed = Fuzzed()
    for path in PATHS:  # start its handler
        fuzzed.loop.run_until_complete(fuzzed.use(path))
    logging.getLogger().addHandler(fuzzed.errors)
    yield fuzzed
    logging.getLogger().removeHandler(fuzzed.errors)
    fuzzed.loop.run_until_complete(lifecycle.close())
    fuzzed.loop.close()
    gc.collect()  # this module ignores the warnings, later tests do not


@pytest.mark.parametrize("path", PATHS)
def test_requests_near_to_valid_ones_neither_fail_nor_hang_nor_print_a_traceback_nor_stay(
    path: str, fuzzed: Fuzzed
) -> None:
    before = fuzzed.loop.run_until_complete(fuzzed.use(path))
    fuzz(cases(path), fuzzed.run, lambda: fuzzed.requests[path] >= REQUESTS // len(PATHS), PATHS.index(path))
    assert fuzzed.loop.run_until_complete(fuzzed.use(path)) == before
    assert fuzzed.requests[path] >= REQUESTS // len(PATHS)
