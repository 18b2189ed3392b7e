"""Counts, error rates and percentiles of the duration, for each tool and day. The database computes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

from django.db.models import Count, F, Q, QuerySet, Window
from django.db.models.functions import Ceil, RowNumber, TruncDate
from django.utils import timezone

from mcp_serving.calls.models import ERRORS, Call

MOST_NAMES = 50
"""Tools, resources and prompts on the page: those that are called most often."""


@dataclass
class Day:
    """One tool on one day. The percentiles are in seconds."""

    date: date
    calls: int = 0
    errors: int = 0
    p50: float | None = None
    p95: float | None = None

    @property
    def error_rate(self) -> float:
        return self.errors / self.calls if self.calls else 0.0


@dataclass
class Statistics:
    """One tool, resource or prompt."""

    method: str
    name: str
    days: list[Day] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return sum(day.calls for day in self.days)

    @property
    def error_rate(self) -> float:
        return sum(day.errors for day in self.days) / self.calls


def statistics(days: int) -> list[Statistics]:
    """The statistics of the last days, today included; the most called first."""
    today = timezone.localdate() if timezone.is_aware(timezone.now()) else date.today()
    dates = [today - timedelta(days=number) for number in reversed(range(days))]
    begin = timezone.now() - timedelta(days=days + 1)  # one day too many: its hours depend on the time zone
    recent = Call.objects.filter(started__gte=begin).order_by()
    most = recent.values("method", "name").annotate(n=Count("pk")).order_by("-n")[:MOST_NAMES]
    keys = [(row["method"], row["name"]) for row in most]
    calls = recent.filter(name__in={name for _, name in keys}).annotate(day=TruncDate("started"))
    cells: defaultdict[tuple[str, str], dict[date, Day]] = defaultdict(lambda: {each: Day(each) for each in dates})
    counted = calls.values("method", "name", "day").annotate(
        n=Count("pk"), bad=Count("pk", filter=Q(outcome__in=ERRORS))
    )
    for day, row in _days(cells, counted):
        day.calls, day.errors = row["n"], row["bad"]
    for share in (0.5, 0.95):
        for day, row in _days(cells, _percentile(calls, share)):
            setattr(day, f"p{share * 100:.0f}", row["duration"])
    found = [Statistics(*key, list(cells[key].values())) for key in keys if key in cells]
    return sorted((each for each in found if each.calls), key=lambda each: -each.calls)


def _days(
    cells: defaultdict[tuple[str, str], dict[date, Day]], rows: Iterable[dict[str, Any]]
) -> Iterable[tuple[Day, dict[str, Any]]]:
    for row in rows:
        if (day := cells[row["method"], row["name"]].get(row["day"])) is not None:
            yield day, row


def _percentile(calls: QuerySet[Call, Any], share: float) -> Iterable[dict[str, Any]]:
    """For each tool and day, the duration that ``share`` of the calls do not exceed, by the nearest rank."""
    group = [F("method"), F("name"), F("day")]
    ranked = calls.annotate(
        rank=Window(RowNumber(), partition_by=group, order_by=["duration", "pk"]),
        wanted=Ceil(Window(Count("pk"), partition_by=group) * share),
    )
    found: Iterable[dict[str, Any]] = ranked.filter(rank=F("wanted")).values("method", "name", "day", "duration")
    return found
