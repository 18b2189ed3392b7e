"""The table that everything comes to, on the terminal and in docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from bench.measuring import Effort, Results, Row, machine
from bench.plots import CAPTIONS
from tests.support.harness import ROOT

DOCUMENT = ROOT / "docs" / "benchmarks.md"
PLOTS = ROOT / "docs" / "benchmarks"
EXPLAINED = ROOT / "bench" / "explained.md"
"""Written by hand: what the ratios come of, and why one is missed."""

HEADINGS = ("ratio", "promised", "", "ours", "theirs", "unit", "what")


def cells(row: Row) -> tuple[str, ...]:
    return (
        "" if row.ratio is None else f"{row.ratio:.2f}",
        "" if row.promise is None else str(row.promise),
        row.verdict,
        _number(row.ours),
        _number(row.theirs),
        row.unit,
        f"{row.part}: {row.case}",
    )


def _number(value: float) -> str:
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
    missed = [row for row in promised if row.verdict == "missed"]
    return f"{len(promised) - len(missed)} of {len(promised)} promised ratios are kept."


def document(results: Results, effort: Effort, minutes: float) -> str:
    parts = [(part, list(rows)) for part, rows in groupby(results.rows, key=lambda row: row.part.partition(",")[0])]
    sections = "\n".join(_section(part, rows) for part, rows in parts)
    plots = "\n".join(f"![{caption}](benchmarks/{name}.svg)\n\n{caption}\n" for name, caption in CAPTIONS.items())
    commands = "\n".join(dict.fromkeys(results.commands))
    return TEMPLATE.format(
        summary=summary(results.rows),
        machine=machine(),
        minutes=f"{minutes:.1f}",
        quick=" A quick run: the figures are not worth much." if effort.quick else "",
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
Calls through `StreamableHTTPHandler` in a Channels router, against the SDK's own application on the same web server.
Daphne is run by `runmcp` on our side and by its own command on the other; uvicorn by its own command on both. Sixteen
connections, each with the next call as soon as it has its answer. *SSE* is an answer as an event stream: of a modern
client to a tool that reports progress. Without a word on the class, both sides serve an SDK `MCPServer`: that is what
the mount costs. With `mcp_serving.MCPServer` on our side, Django's ways are in it too.""",
    "sync tool": """\
A sync tool with one ORM query, against a sync Django view with the same, on one Daphne process and a PostgreSQL of its
own.""",
    "stdio": """\
`runmcp` against the SDK's `run("stdio")` with the same server.""",
    "start": """\
What an MCP client waits for that starts the server, against a Python that sets Django up with the same settings and
imports the SDK's server class. And what `manage.py check` takes with the app installed.""",
    "memory": """\
What the process has grown by, for each session or stream, against the SDK's application on Daphne.""",
    "idle sessions": """\
Calls while sessions are open and idle, against a process with one of them.""",
    "shutdown": """\
The signal comes while calls are in flight that take another second.""",
    "relay": """\
Calls of older clients in sessions, of which each lives in one worker. *Round robin*: nginx leads each request to the
next worker, which relays it over Redis where the session is not its own. *Sticky*: nginx leads each client to the same
worker. *Local* and *relayed* are without nginx, at the session's own worker and at another. *Core* and *pubsub* are
the two layers of channels_redis. Sixteen connections; the workers, nginx, Redis and the client share the cores.""",
    "events": """\
`notify_resource_updated` in a process that serves nothing, and `subscriptions/listen` streams of 2026-07-28 that hear
of it: on four workers on our side, on one on the other.""",
}

TEMPLATE = """\
# Benchmarks

Written by `make bench ARGS=--write`. {summary}

{machine} It took {minutes} minutes.{quick}

The ratios are what counts; the absolute figures are the machine's. Both sides of a ratio run at the same time, as
processes of their own, and have turns in which the other waits; whoever is first in a round is last in the next. The
ratio is taken within each round, and the median of the rounds is what is shown, beside each side's own median. The
client is a process of its own that sends requests made beforehand, measures each answer's time, and looks for what has
to be in it. Nothing is measured within a server. A ratio is ours to theirs: of times and memory, less is better.

{plots}
{sections}
{explained}

## Command lines

What was run, each on a port of its own (8000 here), with the environment that [bench/](../bench/) gives it:

```console
{commands}
```
"""
