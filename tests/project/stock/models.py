"""Models for tests/preview: one of each kind of field and relation that a preview describes."""

from __future__ import annotations

import uuid
from typing import Any

from django.db import models
from django.utils import timezone


class Tag(models.Model):
    name = models.CharField(max_length=20)

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    class Status(models.TextChoices):
        OPEN = "open", "Open"
        CANCELLED = "cancelled", "Cancelled"

    number = models.IntegerField(unique=True)
    status = models.CharField(max_length=10, choices=Status, default=Status.OPEN)
    cancelled_at = models.DateTimeField(null=True, blank=True)
    updated_at = models.DateTimeField(auto_now=True)
    tags = models.ManyToManyField(Tag)

    def __str__(self) -> str:
        return f"order {self.number}"


class Reservation(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE)
    seat = models.CharField(max_length=10)

    def __str__(self) -> str:
        return self.seat


class Product(models.Model):
    name = models.CharField(max_length=20)
    stock = models.IntegerField(default=0)

    def __str__(self) -> str:
        return self.name


class Account(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    name = models.CharField(max_length=20)
    api_key = models.CharField(max_length=40)
    nickname = models.CharField(max_length=20, blank=True)

    def __str__(self) -> str:
        return self.name


class NotDeleted(models.Manager["Document"]):
    def get_queryset(self) -> models.QuerySet[Document]:
        return super().get_queryset().filter(deleted_at=None)


class Document(models.Model):
    """Deleted softly; its labels have a model of their own."""

    title = models.CharField(max_length=200, unique=True)
    data = models.JSONField(default=dict)
    file = models.FileField(blank=True)
    price = models.DecimalField(max_digits=8, decimal_places=2, default=0)
    deleted_at = models.DateTimeField(null=True, blank=True)
    labels = models.ManyToManyField(Tag, through="Label")

    objects = NotDeleted()

    def __str__(self) -> str:
        return self.title

    def delete(self, *_: Any, **__: Any) -> tuple[int, dict[str, int]]:
        self.deleted_at = timezone.now()
        self.save()
        return 1, {}


class Label(models.Model):
    document = models.ForeignKey(Document, on_delete=models.CASCADE)
    tag = models.ForeignKey(Tag, on_delete=models.CASCADE)
    weight = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.tag} {self.weight}"


class Event(models.Model):
    """Refers to a row of any model, as a log or a history does."""

    object_id = models.CharField(max_length=20)
    data = models.BinaryField()

    def __str__(self) -> str:
        return self.object_id


class Entry(models.Model):
    """Of the archive, which is a database of its own."""

    text = models.CharField(max_length=200)

    class Meta:
        verbose_name_plural = "entries"

    def __str__(self) -> str:
        return self.text
