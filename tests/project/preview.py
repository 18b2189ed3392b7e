"""A server whose write tools show a preview: for tests/preview."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.mail import send_mail
from django.db import connection, transaction
from django.utils import timezone
from mcp.server.mcpserver.exceptions import ToolError

from mcp_serving import MCPServer, is_preview, notify_resource_updated

NOTES = Path(os.environ.get("TEST_NOTES", os.devnull))


class ArchiveRouter:
    """Entries are in the database ``archive``."""

    def db_for_read(self, model: Any, **_: Any) -> str:
        return "archive" if model.__name__ == "Entry" else "default"

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **_: Any) -> bool:
        return (db == "archive") == (model_name == "entry")


server = MCPServer("preview")


def note(text: str) -> None:
    with NOTES.open("a") as notes:
        notes.write(f"{text}\n")


@server.write_tool(confirm="Rename the chair?", preview=True, rate="1/h")
def once_an_hour() -> str:
    from tests.project.stock.models import Product

    Product.objects.filter(name="Chair").update(name="Stool")
    return "renamed"


@server.write_tool(confirm="Cancel order {number}?", preview=True)
def cancel_order(number: int) -> str:
    from tests.project.stock.models import Entry, Order, Product

    order = Order.objects.get(number=number)
    order.status = Order.Status.CANCELLED
    order.cancelled_at = timezone.now()
    order.save()
    released = order.reservation_set.count()
    order.reservation_set.all().delete()
    product = Product.objects.select_for_update().get(name="Chair")
    product.stock += released
    product.save()
    Entry.objects.create(text=f"cancelled {number}")
    transaction.on_commit(lambda: note("committed"))
    notify_resource_updated(f"stock://orders/{number}")
    note("preview" if is_preview() else "for good")
    return f"cancelled {number}, released {released}"


@server.write_tool(confirm="Do nothing?", preview=True)
def do_nothing() -> str:
    return "nothing"


@server.write_tool(confirm="Fail?", preview=True)
def fail() -> str:
    from tests.project.stock.models import Tag

    Tag.objects.create(name="left over")
    raise ToolError("There is no stock.")


@server.write_tool(confirm="Invite {name}?", preview=True)
def invite(name: str) -> str:
    from tests.project.stock.models import Account

    Account.objects.create(name=name, api_key=os.urandom(8).hex(), nickname=name[:2])
    send_mail("Welcome", "Hello", "shop@example.com", [f"{name}@example.com"])
    return f"invited {name}"


@server.write_tool(confirm="Tag order {number}?", preview=True)
def tag_order(number: int, names: list[str]) -> str:
    from tests.project.stock.models import Order, Tag

    order = Order.objects.get(number=number)
    order.tags.set([Tag.objects.get_or_create(name=name)[0] for name in names])
    return "tagged"


@server.write_tool(confirm="Restock?", preview=True)
def restock(rows: int) -> str:
    from tests.project.stock.models import Product

    Product.objects.bulk_create([Product(name=f"New {number}", stock=number) for number in range(rows)])
    with connection.cursor() as cursor:
        cursor.execute("UPDATE stock_product SET stock = stock + 1 WHERE name = 'Chair'")
    return "restocked"


@server.write_tool(confirm="Delete all orders?", preview=True)
def delete_orders() -> str:
    from tests.project.stock.models import Order

    return str(Order.objects.all().delete()[0])


@server.write_tool(confirm="Count up?", preview=True)
def count_up() -> str:
    """Each run does something else: the confirmation can never match."""
    from tests.project.stock.models import Tag

    name = os.urandom(4).hex()
    Tag.objects.create(name=name)
    note("ran")
    return name


@server.write_tool(confirm="Conflict?", preview=True)
def conflict() -> str:
    """Another connection changes the row that this transaction has read."""
    from tests.project.stock.models import Product

    note("conflict")
    product = Product.objects.get(name="Chair")

    def change() -> None:
        Product.objects.filter(name="Chair").update(stock=100)
        connection.close()

    with ThreadPoolExecutor(1) as other:
        other.submit(change).result()
    product.stock += 1
    product.save()
    return "changed"


@server.write_tool(confirm="Run {case}?", preview=True)
def run_case(case: str) -> str:
    from tests.project.preview_cases import CASES

    return str(CASES[case]())


@server.write_tool(confirm="Announce?", preview=True)
def announce() -> str:
    """Sends mail, which leaves only after the commit."""
    from tests.project.stock.models import Tag

    Tag.objects.create(name="announced")
    send_mail("News", "Hello", "shop@example.com", ["ann@example.com"])
    folder = Path(settings.EMAIL_FILE_PATH)
    transaction.on_commit(lambda: note(f"committed after {len(list(folder.glob('*.log')))} mails"))
    return "announced"


@server.resource("stock://orders/{number}")
def order_status(number: int) -> str:
    from tests.project.stock.models import Order

    return Order.objects.get(number=number).status


@server.read_tool()
def state() -> dict[str, Any]:
    """The rows that the other tools change."""
    from tests.project.stock.models import Account, Entry, Order, Product, Reservation, Tag

    return {
        "orders": {str(each.number): each.status for each in Order.objects.all()},
        "reservations": Reservation.objects.count(),
        "stock": {each.name: each.stock for each in Product.objects.filter(name="Chair")},
        "products": Product.objects.count(),
        "accounts": Account.objects.count(),
        "entries": Entry.objects.count(),
        "tags": sorted(each.name for each in Tag.objects.all()),
    }


def build_daphne() -> Any:
    from channels.routing import ProtocolTypeRouter, URLRouter
    from daphne.server import Server

    from mcp_serving import StreamableHTTPHandler

    handler = StreamableHTTPHandler(server, public=True)
    application = ProtocolTypeRouter({"http": URLRouter(handler.urlpatterns("mcp"))})
    return Server(application=application, endpoints=json.loads(os.environ["TEST_ENDPOINTS"]))


@server.tool()
def change_stock(stock: int) -> str:
    """Change data while a question waits."""
    from tests.project.stock.models import Product

    Product.objects.filter(name="Chair").update(stock=stock)
    return "changed"
