"""The plots of docs/benchmarks.md."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from bench.measuring import Results, percentile

CAPTIONS = {
    "ratios": "Every promised ratio with its interval, and its promise as a mark. Green: kept. Brown: missed. "
    "Grey: undecided.",
    "latency": "The time of calls, and the share of calls that need less: JSON, 2026-07-28, 16 at once.",
    "memory": "The memory by which a process grows with idle sessions and open streams.",
    "shutdown": "The time from the last answer to the end of the process.",
    "relay": "Calls a second in sessions of several workers, for each way in which a request reaches its session.",
    "growth_connections": "Growth with the connections that are in use at once. The CPU time of a call does not bend "
    "up to 2,000 connections: the event loop visits only the connections that have something to read.",
    "growth_tools": "Growth with the tools in an answer of tools/list. The curve bends between 10 and 100 tools: "
    "below, the work for any request and its token dominates; above, the SDK converts and validates every tool again.",
    "growth_results": "Growth with the size of a result. The curve bends between 16 kB and 256 kB: from there on, "
    "encoding JSON and copying the text cost more than the rest of the call.",
    "growth_workers": "Growth with the workers of uvicorn. The curve bends at the number of cores: further workers, "
    "and the client, share the cores.",
}

_COLORS = {"ours": "#0b6e4f", "theirs": "#b0632c"}
"""They differ in grey too."""
_VERDICTS = {"kept": _COLORS["ours"], "missed": _COLORS["theirs"], "undecided": "#9a9a9a"}


def draw(results: Results, folder: Path) -> None:
    """Write the plots as SVG, the same bytes for the same figures."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {"svg.hashsalt": "mcp-serving", "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False}
    )
    folder.mkdir(exist_ok=True)
    plots = {
        "ratios": _ratios,
        "latency": _latency,
        "memory": _memory,
        "shutdown": _shutdown,
        "relay": _relay,
        "growth_connections": partial(_growth, "connections", "connections"),
        "growth_tools": partial(_growth, "tools", "tools in the list"),
        "growth_results": partial(_growth, "results", "bytes of the result"),
        "growth_workers": partial(_growth, "workers", "workers"),
    }
    for name, plot in plots.items():
        figure = plot(results)
        figure.savefig(
            folder / f"{name}.svg", bbox_inches="tight", pad_inches=0.3, metadata={"Date": None, "Creator": None}
        )


def _figure(columns: int = 1, height: float = 3.2) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height), layout="constrained")
    return figure, figure.subplots(1, columns)


def _ratios(results: Results) -> Any:
    rows = [(row, row.promise, row.ratio) for row in results.rows if row.promise is not None and row.ratio is not None]
    rows.reverse()
    figure, axes = _figure(height=0.6 + 0.21 * len(rows))
    for place, (row, promise, ratio) in enumerate(rows):
        low, high = ratio.median - ratio.low, min(ratio.high, 10) - ratio.median
        axes.barh(place, ratio.median, xerr=[[low], [high]], color=_VERDICTS[row.verdict], height=0.7, ecolor="#555555")
        axes.plot([promise.ratio] * 2, [place - 0.45, place + 0.45], color="black", linewidth=1.5)
    axes.set_yticks(range(len(rows)), [f"{row.part}: {row.case} ({promise})" for row, promise, _ in rows], fontsize=7)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.axvline(1, color="grey", linewidth=0.5)
    axes.set_xlabel("ours / theirs")
    return figure


def _latency(results: Results) -> Any:
    web_servers = ("Daphne", "uvicorn")
    figure, both = _figure(len(web_servers))
    for axes, web_server in zip(both, web_servers, strict=True):
        latencies = results.series[f"latency, {web_server}, JSON, 2026-07-28"]
        for side, label, color in (
            ("plain", "the mount, SDK MCPServer", _COLORS["ours"]),
            ("django", "the mount, mcp_serving.MCPServer", "#4f9d7f"),
            ("bare", "the SDK's application", _COLORS["theirs"]),
        ):
            shares = [share / 10 for share in range(0, 1000, 5)]
            axes.plot(shares, [percentile(latencies[side], share) for share in shares], label=label, color=color)
        axes.set_title(web_server)
        axes.set_xlabel("share of the calls, %")
        axes.set_ylabel("answered within, ms")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7, frameon=False)
    return figure


def _memory(results: Results) -> Any:
    kinds = {
        name.removeprefix("memory, "): grown for name, grown in results.series.items() if name.startswith("memory")
    }
    figure, every = _figure(len(kinds))
    for axes, (kind, grown) in zip(every, kinds.items(), strict=True):
        for side, label in (("ours", "the mount"), ("theirs", "the SDK's application")):
            axes.plot(
                [0, *grown[side]],
                [0, *(size / 1e6 for size in grown[side].values())],
                label=label,
                color=_COLORS[side],
                marker="o",
                markersize=3,
            )
        axes.set_xlabel(f"each: {kind}", fontsize=8)
        axes.set_ylabel("growth of the process, MB")
        axes.legend(fontsize=7, frameon=False)
    return figure


def _shutdown(results: Results) -> Any:
    figure, axes = _figure()
    for (side, took), color in zip(results.series["shutdown"].items(), _COLORS.values(), strict=True):
        axes.plot(list(took), list(took.values()), label=side, color=color, marker="o", markersize=3)
    axes.set_xscale("log")
    axes.set_xlabel("calls in flight at the signal")
    axes.set_ylabel("last answer to exit, s")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return figure


def _relay(results: Results) -> Any:
    figure, axes = _figure()
    ways = results.series["relay"]
    for (way, rates), color in zip(ways.items(), ("#0b6e4f", "#b0632c", "#7a7a7a", "#4f9d7f"), strict=True):
        axes.plot(list(rates), list(rates.values()), label=way, color=color, marker="o", markersize=3)
    axes.set_xticks(sorted({number for rates in ways.values() for number in rates}))
    axes.set_xlabel("workers")
    axes.set_ylabel("calls/s")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, frameon=False)
    return figure


def _growth(curve: str, label: str, results: Results) -> Any:
    """The CPU time of a call, and the calls a second. If both axes are logarithmic, proportional growth is a line."""
    figure, both = _figure(2)
    for axes, place, unit in zip(both, (0, 1), ("CPU time of a call, ms", "calls/s"), strict=True):
        for (side, points), color in zip(results.series[f"growth, {curve}"].items(), _COLORS.values(), strict=False):
            values = [point[place] / 1000 if place == 0 else point[place] for point in points.values()]
            axes.plot(list(points), values, label=side, color=color, marker="o", markersize=3)
        axes.set_xlabel(label)
        axes.set_ylabel(unit)
        if curve == "workers":
            axes.set_xticks(list(points))
        else:
            axes.set_xscale("log")
        if curve in ("tools", "results"):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.legend(fontsize=7, frameon=False)
    return figure
