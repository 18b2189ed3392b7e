"""All benchmarks: one command, one table.

python -m bench                 # all parts
python -m bench --write         # and write docs/benchmarks.md with its plots
python -m bench --quick         # a short run: does it work?
python -m bench --only stdio    # some parts
python -m bench --against HEAD~3    # the CPU time of calls now, against that of an earlier commit
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from functools import partial

from bench import (
    against,
    calls,
    growth,
    idle,
    mount,
    notifications,
    orm,
    peers,
    preview,
    relay,
    report,
    shutdown,
    startup,
    stdio,
)
from bench.measuring import Effort, Results, machine

PARTS = {
    "mount": mount.measure,
    "orm": orm.measure,
    "preview": preview.measure,
    "calls": calls.measure,
    "stdio": stdio.measure,
    "start": startup.measure,
    "idle": idle.measure,
    "shutdown": shutdown.measure,
    "relay": relay.measure,
    "notifications": notifications.measure,
    "peers": peers.measure,
    "growth": growth.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="All benchmarks, in one table.")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a short run: does it work?")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md, with plots; needs all parts")
    parser.add_argument("--against", metavar="COMMIT", help="compare calls with those of an earlier commit instead")
    options = parser.parse_args()
    if options.write and (options.only or options.against):
        parser.error("--write needs all parts: the page is of one run.")
    if options.only and options.against:
        parser.error("--against has parts of its own.")
    if options.write:
        import matplotlib  # noqa: F401 - if it is missing, fail now and not in ten minutes

    effort = Effort(options.quick)
    results, failed, began = Results(), [], time.monotonic()
    parts = {"calls": partial(against.measure, options.against)} if options.against else PARTS
    for name in options.only or parts:
        print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
        started = time.monotonic()
        try:
            results.add(parts[name](effort))
        except Exception:
            traceback.print_exc()
            failed.append(name)
        print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    minutes = (time.monotonic() - began) / 60
    page = "" if options.against else report.document(results, effort, minutes)
    report.show(results.rows)
    summary = "" if options.against else f"{report.summary(results.rows)}\n"
    print(f"\n{summary}{machine()} It took {minutes:.1f} minutes.")
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}.")
    if options.write:
        from bench import plots

        plots.draw(results, report.PLOTS)
        report.DOCUMENT.write_text(page)


if __name__ == "__main__":
    main()
