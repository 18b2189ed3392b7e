"""Where a call through the mount spends its time: the stacks of a busy server are sampled.

    python -m bench.profile

A sample counts for the innermost function of a package: the time of an anyio cancel scope, or of a dictionary, counts
for the function that used it. This is not a part of the table. It explains the ratios.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from bench.mount import GENERATIONS, load_of
from bench.servers import WEB_SERVERS, Served, serving

SECONDS = 10
SAMPLES_A_SECOND = 500
REQUESTS = 400
OWNERS = {
    "mcp_serving": "the mount",
    "channels": "Channels' and Django's routes",
    "django": "Channels' and Django's routes",
    "mcp": "the SDK",
    "mcp_types": "the SDK",
    "starlette": "the SDK",
    "sse_starlette": "the SDK",
    "uvicorn": "the web server",
    "daphne": "the web server",
    "twisted": "the web server",
}
PACKAGE = re.compile(r"(?:-packages/|/(?=mcp_serving/))(\w+)/")


def main() -> None:
    for web_server in WEB_SERVERS:
        for json_response in (True, False):
            for generation in GENERATIONS:
                print(f"{web_server}, {'JSON' if json_response else 'SSE'}, {generation}")
                _show(_stacks(web_server, generation, json_response))


def _stacks(web_server: str, generation: str, json_response: bool) -> Counter[str]:
    """How often each stack was seen, its frames from the outermost to the innermost, joined by semicolons."""
    with serving(web_server, "plain", json_response=json_response) as served, tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "stacks")
        asyncio.run(_sample(served, generation, json_response, file))
        lines = [line.rpartition(" ") for line in file.read_text().splitlines()]
        return Counter({stack: int(times) for stack, _, times in lines})


async def _sample(served: Served, generation: str, json_response: bool, file: Path) -> None:
    load = await load_of("plain", served, generation, json_response)
    await load.turn(REQUESTS)
    rate, seconds = str(SAMPLES_A_SECOND), str(SECONDS)
    options = ["--rate", rate, "--duration", seconds, "--format", "raw", "--full-filenames", "--output", str(file)]
    sampler = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("py-spy"),
        *("record", "--pid", str(served.process.pid), *options),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    ended = asyncio.create_task(sampler.wait())
    while not ended.done():
        await load.turn(REQUESTS)


def _show(stacks: Counter[str]) -> None:
    owners, files = Counter[str](), Counter[str]()
    for stack, times in stacks.items():
        owner, file = _innermost(stack)
        owners[owner] += times
        if owner == "the mount":
            files[f"  of it: {file}"] += times
    for found in (owners, files):
        for name, times in found.most_common():
            print(f"{100 * times / stacks.total():8.1f} %  {name}")


def _innermost(stack: str) -> tuple[str, str]:
    """The package and the file of the innermost code."""
    for frame in reversed(stack.split(";")):
        place = frame.partition(" (")[2]
        package = PACKAGE.search(place)
        if package is not None and package[1] in OWNERS:
            return OWNERS[package[1]], place.rpartition("/")[2].partition(":")[0]
    return "the event loop", ""


if __name__ == "__main__":
    main()
