"""A rate such as ``600/m``: the number of calls that are allowed in a period."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"s": (1, "second"), "m": (60, "minute"), "h": (3600, "hour"), "d": (86400, "day")}
_RATE = re.compile(r"([0-9]{1,9})/([0-9]{0,6})([smhd])")


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of calls in a number of seconds."""

    calls: int
    seconds: int
    words: str
    """``10 per minute``."""


def valid_rate(name: str, rate: object) -> Rate | None:
    """The rate in numbers; None if there is no limit.

    Args:
        name: what the rate belongs to, for the error.
        rate: a number, a slash and a period: ``10/s``, ``600/m``, ``20/15m``, ``1000/h`` or ``5000/d``.

    Raises:
        ValueError: the rate has another form, or allows no call.
    """
    if rate is None:
        return None
    found = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    calls, times = (int(found[1]), int(found[2] or 1)) if found else (0, 0)
    if found is None or not calls or not times:
        raise ValueError(
            f"The rate of {name} is {rate!r}; it must be a number of calls per second, minute, hour or day, such as "
            "'10/s', '600/m', '20/15m', '1000/h' or '5000/d', or None for no limit."
        )
    seconds, unit = _UNITS[found[3]]
    return Rate(calls, times * seconds, f"{calls} per {unit}" if times == 1 else f"{calls} per {times} {unit}s")
