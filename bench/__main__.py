"""All benchmarks: one command, one table.

python -m bench                 # all parts
python -m bench --write         # and write docs/benchmarks.md with its plots
python -m bench --quick         # a short run: does it work?
python -m bench --only stdio    # some parts
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from bench import idle, mount, notifications, orm, preview, relay, report, shutdown, startup, stdio
from bench.measuring import Effort, Results, machine

PARTS = {
    "mount": mount.measure,
    "orm": orm.measure,
    "preview": preview.measure,
    "stdio": stdio.measure,
    "start": startup.measure,
    "idle": idle.measure,
    "shutdown": shutdown.measure,
    "relay": relay.measure,
    "notifications": notifications.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="All benchmarks, in one table.")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a short run: does it work?")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md, with plots; needs all parts")
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("--write needs all parts: the page is of one run.")
    if options.write:
        import matplotlib  # noqa: F401 - if it is missing, fail now and not in ten minutes

    effort = Effort(options.quick)
    results, failed, began = Results(), [], time.monotonic()
    for name in options.only or PARTS:
        print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
        started = time.monotonic()
        try:
            results.add(PARTS[name](effort))
        except Exception:
            traceback.print_exc()
            failed.append(name)
        print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    minutes = (time.monotonic() - began) / 60
    report.show(results.rows)
    print(f"\n{report.summary(results.rows)}\n{machine()} It took {minutes:.1f} minutes.")
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}.")
    if options.write:
        from bench import plots

        plots.draw(results, report.PLOTS)
        report.DOCUMENT.write_text(report.document(results, effort, minutes))


if __name__ == "__main__":
    main()
