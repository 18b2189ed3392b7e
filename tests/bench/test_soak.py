"""What bench/soak.py does for minutes, for a few seconds."""

from __future__ import annotations

import asyncio
import json

import pytest

from bench.soak import IDLE_TIMEOUT, Load, problems, soak
from tests.support.harness import serving_http

pytestmark = [pytest.mark.process, pytest.mark.serial]


def test_nothing_stays_behind_after_calls_sessions_and_cut_streams() -> None:
    load = Load(calls=600, sessions=100, abandoned=100, streams=60)
    env = {"TEST_HANDLER": json.dumps({"session_idle_timeout": IDLE_TIMEOUT})}
    with serving_http(env=env) as (process, address):
        before, after = asyncio.run(soak(address, load, load.times(0.5)))
        assert problems(before, after) == [], process.errors
