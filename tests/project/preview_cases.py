"""What the tool ``run_case`` of tests/project/preview.py does, by name: code that a preview must describe rightly."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from asgiref.sync import async_to_sync
from django.core.files.base import ContentFile
from django.db import connection, connections, transaction
from django.db.models import F
from django.db.models.signals import post_save
from django.utils import timezone, translation

from mcp_serving import is_preview
from tests.project.stock.models import Document, Event, Label, Order, Product, Reservation, Tag

CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


def execute(sql: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


@case
def f_expressions() -> None:
    product = Product.objects.get(name="Chair")
    product.stock = F("stock") - 1
    product.save()
    Order.objects.filter(number=7).update(number=F("number") * 10)


@case
def update_or_create() -> None:
    Product.objects.update_or_create(name="Chair", defaults={"stock": 3})
    Product.objects.update_or_create(name="Lamp", defaults={"stock": 3})


@case
def upsert() -> None:
    unique = ["number"] if connection.features.supports_update_conflicts_with_target else None
    Order.objects.bulk_create(
        [Order(number=7, status="cancelled"), Order(number=9)],
        update_conflicts=True,
        unique_fields=unique,
        update_fields=["status"],
    )


@case
def ignored_conflicts() -> None:
    Order.objects.bulk_create([Order(number=7), Order(number=9)], ignore_conflicts=True)


@case
def signals() -> None:
    def rename(**_: Any) -> None:
        Tag.objects.filter(name="old").update(name="renamed")

    post_save.connect(rename, sender=Product)
    try:
        product = Product.objects.get(name="Chair")
        product.stock += 1
        product.save()
    finally:
        post_save.disconnect(rename, sender=Product)


@case
def savepoints() -> None:
    with transaction.atomic():
        Tag.objects.create(name="kept")
        savepoint = transaction.savepoint()
        Tag.objects.create(name="gone")
        transaction.savepoint_rollback(savepoint)


@case
def locked_rows() -> None:
    for product in Product.objects.select_for_update().filter(name="Chair"):
        product.stock = 1
        product.save(update_fields=["stock"])


@case
def soft_deletion() -> None:
    document = Document.objects.create(title="Draft", data={"pages": [1, {"of": "two"}]}, price=Decimal("12.50"))
    execute("UPDATE stock_document SET title = 'Plan' WHERE title = 'Draft'")
    document.refresh_from_db()
    document.delete()


@case
def softly_deleted() -> None:
    Document.objects.get(title="Old plan").delete()


@case
def through_a_model() -> None:
    document = Document.objects.get(title="Old plan")
    document.labels.add(Tag.objects.get(name="old"), through_defaults={"weight": 3})


@case
def copied_keys() -> None:
    """The database gives another key to the same row in the next run."""
    for name in ("first", "second"):
        tag = Tag.objects.create(name=name)
        Event.objects.create(object_id=str(tag.pk), data=b"\0" + name.encode())


@case
def another_key() -> None:
    Label.objects.all().delete()
    Document.objects.filter(title="Old plan").update(id=4242)


@case
def async_orm() -> None:
    async def work() -> None:
        await Tag.objects.acreate(name="async")

    async_to_sync(work)()


@case
def odd_values() -> None:
    Document.objects.create(title="**b** <i>\x1b[31m\nThis would\n- delete nothing\r\u202eend " + "x" * 150)
    Document.objects.filter(title="Old plan").update(data={"text": "y" * 100_000})


@case
def raw_sql() -> None:
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO stock_tag (name) VALUES (%s)", [("a",), ("b",)])
    execute("/* all */ UPDATE stock_product SET stock = 0")
    if connection.vendor == "postgresql":
        from psycopg import sql

        execute("WITH gone AS (DELETE FROM public.stock_reservation RETURNING *) SELECT * FROM gone FOR UPDATE")
        execute(sql.SQL("UPDATE {} SET title = 'raw'").format(sql.Identifier("stock_document")))
        execute("CREATE TABLE stock_new (number int)")
    execute("SELECT 1")


@case
def bulk() -> None:
    Reservation.objects.bulk_create([Reservation(order=Order.objects.get(number=8), seat="B") for _ in range(5000)])


@case
def cascade() -> None:
    Order.objects.get(number=8).delete()


@case
def language_and_time_zone() -> None:
    """As a middleware of the project does for its user."""
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    Order.objects.filter(number=7).update(cancelled_at=datetime(2026, 3, 1, 20, tzinfo=UTC))


# Cases that must not run: each ends the transaction


@case
def raw_commit() -> None:
    Tag.objects.create(name="committed")
    execute("-- for good\nCOMMIT")


@case
def raw_rollback() -> None:
    Tag.objects.create(name="rolled back")
    execute("ROLLBACK")


@case
def django_commit() -> None:
    Tag.objects.create(name="committed")
    transaction.commit()


@case
def autocommit() -> None:
    Tag.objects.create(name="committed")
    transaction.set_autocommit(True)


@case
def closed_connection() -> None:
    Tag.objects.create(name="closed")
    connections["default"].close()


@case
def implicit_commit() -> None:
    """MySQL commits before a statement that changes the schema."""
    Tag.objects.create(name="committed")
    execute("CREATE TABLE stock_new (number int)")


@case
def exit_of_the_process() -> None:
    Tag.objects.create(name="left over")
    sys.exit(3)


# Files


@case
def save_file() -> None:
    Document.objects.get(title="Old plan").file.save("plan.txt", ContentFile(b"plan"))


@case
def save_file_for_good() -> None:
    document = Document.objects.get(title="Old plan")
    if not is_preview():
        document.file.save("plan.txt", ContentFile(b"plan"))
