"""Models for tests/preview: one of each kind of field and relation that a preview describes."""

from __future__ import annotations

import uuid

from django.db import models


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


class Entry(models.Model):
    """Of the archive, which is a database of its own."""

    text = models.CharField(max_length=200)

    class Meta:
        verbose_name_plural = "entries"

    def __str__(self) -> str:
        return self.text
