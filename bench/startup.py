"""The CPU time from the start of a process to its first answer, and what the app adds to other commands.

    python -m bench.startup

A desktop client starts ``runmcp`` each time. The command must import Django and the SDK in any case. This import
alone is the other side. The bytecode of all modules exists already, as after an installation.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from tempfile import TemporaryDirectory

from bench.measuring import Effort, Promise, Results, cpu_seconds, in_turns, row
from bench.servers import typed
from tests.support.harness import INITIALIZE, INITIALIZED, MANAGE, ROOT, environment

ROUNDS = 15
FIRST_ANSWER = Promise(1.05, at_most=True)
CHECK = Promise(1.05, at_most=True)

LIST_TOOLS = {"jsonrpc": "2.0", "id": "list", "method": "tools/list"}
GREETING = b"".join(json.dumps(message).encode() + b"\n" for message in (INITIALIZE, INITIALIZED, LIST_TOOLS))

SERVE = [*MANAGE, "runmcp", "--transport", "stdio"]
IMPORT = [
    sys.executable,
    "-c",
    "import django; django.setup(); from mcp.server.mcpserver import MCPServer; print('imported', flush=True)",
]
CHECKED = [*MANAGE, "check"]
SERVERS = {"an SDK MCPServer": "bench.served.sdk_server", "an mcp_serving.MCPServer": "bench.served.django_server"}


def measure(effort: Effort) -> Results:
    with TemporaryDirectory() as bytecode:
        return _measure(effort, bytecode)


def _measure(effort: Effort, bytecode: str) -> Results:
    results = Results(commands=[typed(command) for command in (SERVE, IMPORT, CHECKED)])
    for kind, server in SERVERS.items():
        env = _environment(server, bytecode)
        sides = {"ours": (SERVE, 2, env), "theirs": (IMPORT, 1, env)}
        for side in sides.values():
            _until_lines(*side)  # writes the bytecode
        rounds = [
            {side: _until_lines(*sides[side]) for side in in_turns(sides, number)}
            for number in range(effort.rounds(ROUNDS))
        ]
        case = f"runmcp to its first tools/list, {kind}, against the imports alone"
        results.rows.append(row("start", case, rounds, "s of CPU", promise=FIRST_ANSWER))
    servers = {"ours": next(iter(SERVERS.values())), "theirs": ""}
    checks = {side: _environment(server, bytecode) for side, server in servers.items()}
    for env in checks.values():
        _until_end(CHECKED, env)
    rounds = [
        {side: _until_end(CHECKED, checks[side]) for side in in_turns(checks, number)}
        for number in range(effort.rounds(ROUNDS))
    ]
    results.rows.append(row("start", "check with the app, against without", rounds, "s of CPU", promise=CHECK))
    return results


def _until_lines(command: list[str], number: int, env: dict[str, str]) -> float:
    """Seconds of CPU time until ``number`` lines have arrived. The client's first messages are already waiting."""
    with subprocess.Popen(
        command,
        env=env,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(GREETING)
        process.stdin.flush()
        lines = [process.stdout.readline() for _ in range(number)]
        took = cpu_seconds(process.pid)
        process.kill()
    if not (lines[-1] == b"imported\n" or b'"tools"' in lines[-1]):
        raise RuntimeError(f"not the answer: {lines!r}")
    return took


def _until_end(command: list[str], env: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=env, cwd=ROOT, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _environment(server: str, bytecode: str) -> dict[str, str]:
    return environment(
        DJANGO_SETTINGS_MODULE="bench.startup_settings",
        BENCH_SERVER=server,
        PYTHONPYCACHEPREFIX=bytecode,
        PYTHONDONTWRITEBYTECODE="",
    )


if __name__ == "__main__":
    from bench.report import show

    show(measure(Effort()).rows)
