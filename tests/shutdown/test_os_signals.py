"""A signal never finds a moment without its handler, and forking changes nothing for the one who forks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.harness import DEADLINE, ROOT

STORM = """
import asyncio, os, signal, sys, threading
from mcp_serving.shutdown import os_signals

received = [0, 0]

def outside(number, frame):
    received[0] += 1

def inside(number):
    received[1] += 1

for number in os_signals.STOPPING:
    signal.signal(number, outside)
done = threading.Event()

def storm():
    while not done.is_set():
        for number in os_signals.STOPPING:
            os.kill(os.getpid(), number)

thread = threading.Thread(target=storm)
thread.start()
loop = asyncio.new_event_loop()
for _ in range(300):
    with os_signals.handled_by(loop, inside):
        loop.run_until_complete(asyncio.sleep(0.001))
done.set()
thread.join()
loop.close()
assert all(received), received
assert all(signal.getsignal(number) is outside for number in os_signals.STOPPING)
print("survived")
"""

IDLE = """
import asyncio, os, signal, threading, time
from mcp_serving.shutdown import os_signals

async def main():
    received = asyncio.get_running_loop().create_future()
    with os_signals.handled_by(asyncio.get_running_loop(), received.set_result):
        # Delivered to another thread, while the event loop has nothing to do.
        def send():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            time.sleep(0.2)
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        threading.Thread(target=send).start()
        async with asyncio.timeout(10):
            print((await received).name)

asyncio.run(main())
"""

FORKED = """
import asyncio, os, signal
from mcp_serving.shutdown import os_signals

def blocked():
    return {signal.Signals(number).name for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])}

async def main():
    with os_signals.handled_by(asyncio.get_running_loop(), print):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
        before = blocked()
        child = os.fork()
        if child == 0:
            os._exit(0 if blocked() == before else 1)
        assert blocked() == before, blocked()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sorted(before))

asyncio.run(main())
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=3 * DEADLINE
    )


@pytest.mark.process
def test_signals_without_pause_never_find_the_process_without_a_handler() -> None:
    result = run(STORM)
    assert (result.returncode, result.stdout) == (0, "survived\n"), result.stderr


@pytest.mark.process
def test_a_signal_that_another_thread_receives_wakes_an_idle_event_loop() -> None:
    result = run(IDLE)
    assert (result.returncode, result.stdout) == (0, "SIGTERM\n"), result.stderr


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_signals_that_the_caller_has_blocked_stay_blocked_after_a_fork() -> None:
    result = run(FORKED)
    assert (result.returncode, result.stdout) == (0, "0 ['SIGTERM', 'SIGUSR1']\n"), result.stderr
