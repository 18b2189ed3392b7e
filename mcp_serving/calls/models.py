from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import models
from django.utils import timezone

from mcp_serving.signals import Outcome

ERRORS = (Outcome.TOOL_ERROR, Outcome.FAILED, Outcome.CUT)
"""The outcomes that count as errors. Their cause is in the server, not with the caller or the user."""

_BATCH = 10_000


class CallQuerySet(models.QuerySet["Call"]):
    def remove_older_than(self, days: int) -> int:
        """Remove the calls that began more than ``days`` days ago, in batches that lock the table only briefly.

        Returns:
            How many calls were removed.
        """
        old = self.filter(started__lt=timezone.now() - timedelta(days=days)).order_by()
        removed = 0
        while keys := list(old.values_list("pk", flat=True)[:_BATCH]):
            removed += self.filter(pk__in=keys).delete()[0]
        return removed


class Call(models.Model):
    """A finished call, as ``mcp_serving.signals.CallRecord`` describes it."""

    started = models.DateTimeField(db_index=True)
    method = models.CharField(max_length=30)
    name = models.CharField(max_length=200)
    outcome = models.CharField(max_length=20, choices=[(str(each), str(each).replace("_", " ")) for each in Outcome])
    reason = models.CharField(max_length=200)
    duration = models.FloatField(help_text="Seconds.")
    thread_wait = models.FloatField("wait for a thread", help_text="Seconds.")
    answer_size = models.PositiveBigIntegerField(help_text="Bytes.")
    transport = models.CharField(max_length=20)
    protocol_version = models.CharField(max_length=200)
    request_id = models.CharField("request id", max_length=200)
    session = models.CharField(max_length=200)
    # No constraint: the user may be deleted before the batch is written, and may be in another database.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+", db_constraint=False
    )
    user_name = models.CharField(max_length=200, help_text="As it was at the time of the call.")
    token = models.CharField(max_length=200, help_text="The public part of a token, or the id of an OAuth client.")
    client = models.CharField(max_length=200)
    client_version = models.CharField(max_length=200)
    arguments = models.TextField(help_text="JSON; only of tools that are declared with record_arguments.")

    objects = CallQuerySet.as_manager()

    class Meta:
        ordering = ("-started", "-pk")
        default_permissions = ("view",)
        indexes = (models.Index(fields=["name", "started"], name="mcp_calls_name_started"),)

    def __str__(self) -> str:
        return f"{self.method} {self.name}"
