"""The table of all results, on the terminal and in docs/benchmarks.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from bench.measuring import Effort, Results, Row, machine
from bench.plots import CAPTIONS
from tests.support.harness import ROOT

DOCUMENT = ROOT / "docs" / "benchmarks.md"
PLOTS = ROOT / "docs" / "benchmarks"
EXPLAINED = ROOT / "bench" / "explained.md"
"""Written by hand: the reasons for the ratios."""

HEADINGS = ("ratio", "promised", "", "ours", "theirs", "unit", "what")


def cells(row: Row) -> tuple[str, ...]:
    return (
        "" if row.ratio is None else str(row.ratio),
        "" if row.promise is None else str(row.promise),
        row.verdict,
        _number(row.ours),
        _number(row.theirs),
        row.unit,
        f"{row.part}: {row.case}",
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def show(rows: Iterable[Row]) -> None:
    """Print the table."""
    lines = [HEADINGS, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    for line in lines:
        print(
            "  ".join(cell.rjust(width) for cell, width in zip(line[:5], widths, strict=False)), "", *line[5:], sep="  "
        )


def summary(rows: Sequence[Row]) -> str:
    promised = [row for row in rows if row.verdict]
    verdicts = Counter(row.verdict for row in promised)
    kept = f"{verdicts['kept']} of {len(promised)} promised ratios are kept"
    return f"{kept}; missed: {verdicts['missed']}, undecided: {verdicts['undecided']}."


def document(results: Results, effort: Effort, minutes: float) -> str:
    parts = [(part, list(rows)) for part, rows in groupby(results.rows, key=lambda row: row.part.partition(",")[0])]
    sections = "\n".join(_section(part, rows) for part, rows in parts)
    plots = "\n".join(f"![{caption}](benchmarks/{name}.svg)\n\n{caption}\n" for name, caption in CAPTIONS.items())
    commands = "\n".join(dict.fromkeys(results.commands))
    return TEMPLATE.format(
        summary=summary(results.rows),
        machine=machine(),
        minutes=f"{minutes:.1f}",
        quick=" This was a quick run: do not use its figures." if effort.quick else "",
        sections=sections,
        explained=EXPLAINED.read_text().rstrip(),
        plots=plots,
        commands=commands,
    )


def _section(part: str, rows: list[Row]) -> str:
    head = ["| ratio | promised | | ours | theirs | unit | what |", "| ---: | ---: | --- | ---: | ---: | --- | --- |"]
    lines = ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join([f"## {part[0].upper()}{part[1:]}", "", NOTES[part], "", *head, *lines, ""])


NOTES = {
    "mount": """\
Calls through `StreamableHTTPHandler` in a Channels router, against the SDK's own application on the same web server. On
our side, `runmcp` runs Daphne; on the other side, Daphne's own command does. On both sides, uvicorn runs by its own
command. There are 16 connections. Each sends its next call when it has its answer. *SSE* means an answer as an event
stream: for clients of 2026-07-28, the tool reports progress. Unless a class is named, both sides serve an SDK
`MCPServer`: this is the cost of the mount. With `mcp_serving.MCPServer` on our side, the cost of users, permissions and
threads is included.""",
    "sync tool": """\
A sync tool with one ORM query, against a sync Django view with the same query, on one Daphne process and a private
PostgreSQL.""",
    "write tool": """\
A write tool that saves one row on a private PostgreSQL. Each call has a question that is answered, and a result. *With
a preview*, the question shows what the tool would change.""",
    "calls": """\
A sync tool with one query, on a private PostgreSQL. *The record alone*: a receiver of `call_finished` that
does nothing is connected. *The app that stores it* is `mcp_serving.calls`. Both include the thread that delivers
the records. *OpenTelemetry*: each call makes a span, and no span is sent.""",
    "stdio": """\
`runmcp`, against the SDK's `run("stdio")` with the same server.""",
    "start": """\
The CPU time from the start of a server to its first answer, against a Python that sets up Django with the same settings
and imports the SDK's server class. Also the CPU time of `manage.py check` with and without the app.""",
    "memory": """\
The memory by which the process grows for each session or stream, against the SDK's application on Daphne.""",
    "idle sessions": """\
Calls while many idle sessions are open, against a process with one session.""",
    "shutdown": """\
The signal arrives while calls are in flight that need another second.""",
    "relay": """\
Calls of older clients in sessions. Each session lives in one worker. *Round robin*: nginx sends each request to the
next worker, which relays it over Redis if the session is not its own. *Sticky*: nginx always sends a client to the
same worker. *Local* and *relayed* are without nginx, at the session's own worker and at another worker. *Core* and
*pubsub* are the two channel layers of channels_redis. There are 16 connections. The workers, nginx, Redis and the
client share the cores.""",
    "notifications": """\
A process that serves nothing calls `notify_resource_updated`. `subscriptions/listen` streams of 2026-07-28 receive the
notifications: on four workers on our side, on one worker on the other side.""",
    "peers": """\
Other ways to serve MCP from a Django project, against `mcp_serving.MCPServer` behind a `StreamableHTTPHandler`. The
peers are django-mcpz, django-stateless-mcp, djangorestframework-mcp-server, and FastMCP's application mounted next to
Django's by hand. Each has an environment of its own with a pinned version, and is set up as its documentation says.
All environments have the same Django, web servers and SDK. All projects have the same settings, with `DEBUG` off and
without middleware.

- *tools/call*: the same sync tool returns its argument, over 16 connections. Every peer supports 2026-07-28. A plain
  async Django view with the same text, and a bare ASGI "hello", show what Django and the web server need without MCP.
- *Start*: from the start of the process to its first answer.
- *Open session*: the memory by which the process grows with each session.
- *SIGTERM*: the signal arrives in the middle of calls of two seconds.

On Daphne, `runmcp` runs our side, and Daphne's own command runs the others. If a peer cannot be measured, its row
says why. Run this part on an idle machine. A sync tool runs in a thread, and on a busy machine the CPU time of such
calls varied by a factor of two.""",
    "growth": """\
How the CPU time of a call grows. Both columns measure `mcp_serving.MCPServer`, with JSON and clients of 2026-07-28.
The column *ours* is the point that the row names. The column *theirs* is the first point of its curve. All connections
are in use at once: each sends its next call when it has its answer. Four connections list tools, and one fetches
results. 16 connections are shared equally by all workers. *With permissions* means that each tool requires one of ten
permissions, and that the user has all of them. The server counts its SQL queries: one query finds the bearer token and
its user, two queries find the permissions of the user and of the groups. The size of a result is that of its text. The
answer is twice as large, because the SDK sends the text also as structured content.""",
}

TEMPLATE = """\
# Benchmarks

`make bench ARGS=--write` has written this page. {summary}

{machine} It took {minutes} minutes.{quick}

Look at the ratios of CPU time. A ratio is ours divided by theirs. For times and memory, a smaller ratio is better.
The CPU time of a call is that of all threads and child processes of the server. Other programs on the machine change it
less than they change throughput and latency. So the promises are about ratios of CPU time.

Both sides of a ratio run at the same time, as processes of their own. They are measured in turns, and one waits while
the other is measured. The side that is first in one round is last in the next. There are many short rounds, and each
gives one ratio. The table shows the median of these ratios, the interval in which the true median lies with a
probability of 95 %, and the median of each side. If the promise is within the interval, the result is *undecided*. The
client is a process of its own. It prepares its requests in advance, measures the time of each answer, and checks each
answer. All times are measured outside of the server.

{plots}
{sections}
{explained}

## Command lines

These commands were run, each on a port of its own (8000 here), with the environment from [bench/](../bench/):

```console
{commands}
```
"""
