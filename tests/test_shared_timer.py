"""One timer for many objects."""

from __future__ import annotations

import asyncio

from mcp_serving.shared_timer import SharedTimer

PERIOD = 0.05


class Noted:
    def __init__(self) -> None:
        self.times: list[float] = []
        self.called = asyncio.Event()

    def on_time(self) -> None:
        self.times.append(asyncio.get_running_loop().time())
        self.called.set()


def test_an_object_is_called_once_after_a_period_unless_it_is_discarded() -> None:
    async def run() -> None:
        loop, timer = asyncio.get_running_loop(), SharedTimer(PERIOD)
        for _ in range(2):  # also after a time in which the timer had nothing to do
            began, kept, discarded, discarded_after_a_tick = loop.time(), Noted(), Noted(), Noted()
            for each in (kept, discarded):
                timer.add(each)
            timer.discard(discarded)
            adding = loop.call_later(1.5 * PERIOD, timer.add, discarded_after_a_tick)
            await kept.called.wait()
            adding.cancel()  # on a busy machine, it has not begun
            timer.discard(discarded_after_a_tick)
            await asyncio.sleep(3 * PERIOD)
            assert [time - began >= PERIOD for time in kept.times] == [True]
            assert not discarded.times
            assert not discarded_after_a_tick.times
            assert not timer._is_running

    asyncio.run(run())


def test_an_object_that_is_added_while_the_timer_runs_waits_for_a_whole_period() -> None:
    async def run() -> None:
        loop, timer, first, second = asyncio.get_running_loop(), SharedTimer(PERIOD), Noted(), Noted()
        timer.add(first)
        await asyncio.sleep(PERIOD / 2)
        began = loop.time()
        timer.add(second)
        await second.called.wait()
        assert first.times
        assert loop.time() - began >= PERIOD

    asyncio.run(run())
