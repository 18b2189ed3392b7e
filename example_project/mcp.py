"""The MCP server of the shop. The SDK reads names, types and docstrings, and describes the tools to clients.

Sync functions run in a thread and use the ORM as a view does. Async functions use the async methods of the ORM.

Everybody may read, as on the pages at /orders/. A tool that writes needs a permission. Nobody can undo a cancellation
or a refund, so these tools also ask the user. For a user without the permission, these tools do not exist.
"""

import asyncio
from datetime import date
from decimal import Decimal
from typing import Annotated

from django.contrib.admin.models import CHANGE, LogEntry
from django.db import transaction
from django.db.models import Count, F, Q, Sum
from django.db.models.functions import TruncMonth
from django.utils import timezone
from mcp import MCPError
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp_types import INVALID_PARAMS, ToolAnnotations
from pydantic import Field

from example_project.shop.models import REVENUE, Order, OrderLine, Product
from example_project.shop.results import (
    FoundOrders,
    MonthRevenue,
    MonthSales,
    OrderDetails,
    OrderSummary,
    ProductInfo,
    SalesReport,
    money,
)
from mcp_serving import MCPServer, get_user, notify_resource_updated

server = MCPServer(
    "example-shop",
    version="1.0",
    instructions="Orders, customers and stock of a small coffee and tea wholesaler. Prices are in euros.",
)

ADDS_STOCK = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)

CANCELLABLE = (Order.Status.OPEN, Order.Status.PAID)
REFUNDABLE = (Order.Status.PAID, Order.Status.SHIPPED)

OrderNumber = Annotated[int, Field(ge=1, description="The number of an order, such as 1001")]


# --- Tools that read ---


@server.read_tool()
def search_orders(
    status: Annotated[Order.Status | None, Field(description="Only orders in this state")] = None,
    customer: Annotated[str, Field(description="Part of the customer's name or email address")] = "",
    limit: Annotated[int, Field(ge=1, le=100, description="List at most this many orders")] = 20,
) -> FoundOrders:
    """Find orders by status and customer, newest first."""
    orders = Order.objects.with_details()
    if status is not None:
        orders = orders.filter(status=status)
    if customer:
        orders = orders.filter(Q(customer__name__icontains=customer) | Q(customer__email__icontains=customer))
    return FoundOrders(found=orders.count(), orders=[OrderSummary.of(order) for order in orders[:limit]])


@server.read_tool()
def order_details(number: OrderNumber) -> OrderDetails:
    """Show one order: its customer, status, lines and total."""
    order = find_order(number)
    if order is None:
        raise ToolError(f"There is no order {number}; search_orders lists the orders there are.")
    return OrderDetails.of(order)


@server.read_tool()
def revenue_by_month(
    year: Annotated[int | None, Field(ge=2000, le=2100, description="All years if left out")] = None,
) -> list[MonthRevenue]:
    """Orders and revenue of each month, oldest first. Only paid and shipped orders count."""
    orders = Order.objects.sold()
    if year is not None:
        orders = orders.filter(placed_at__year=year)
    months = (
        orders.annotate(month=TruncMonth("placed_at"))
        .values("month")
        .annotate(orders=Count("pk", distinct=True), revenue=REVENUE)
        .order_by("month")
    )
    return [
        MonthRevenue(month=f"{row['month']:%Y-%m}", orders=row["orders"], revenue=money(row["revenue"]))
        for row in months
    ]


@server.read_tool()
async def sales_report(
    ctx: Context,
    months: Annotated[int, Field(ge=1, le=60, description="How many months, up to that of the last sale")] = 12,
    pause: Annotated[
        float, Field(ge=0, le=60, description="Seconds to wait between months, to watch the progress")
    ] = 0.0,
) -> SalesReport:
    """Report orders, revenue and best seller month by month, with progress notifications on the way."""
    last = await Order.objects.sold().afirst()
    if last is None:
        raise ToolError("Nothing has been sold yet.")
    sales: list[MonthSales] = []
    revenue = Decimal(0)
    for done, month in enumerate(months_up_to(timezone.localdate(last.placed_at), months), start=1):
        sold = Order.objects.sold().filter(placed_at__year=month.year, placed_at__month=month.month)
        figures = await sold.aaggregate(orders=Count("pk", distinct=True), revenue=REVENUE)
        best = await (
            OrderLine.objects.filter(order__in=sold.order_by())
            .values("product__name")
            .annotate(pieces=Sum("quantity"))
            .order_by("-pieces", "product__name")
            .afirst()
        )
        sales.append(
            MonthSales(
                month=f"{month:%Y-%m}",
                orders=figures["orders"],
                revenue=money(figures["revenue"]),
                best_seller=best["product__name"] if best else None,
            )
        )
        revenue += figures["revenue"]
        await ctx.report_progress(done, months, f"{month:%B %Y}")
        if pause and done < months:
            await asyncio.sleep(pause)
    return SalesReport(orders=sum(month.orders for month in sales), revenue=money(revenue), months=sales)


# --- Tools that write ---


@server.tool(annotations=ADDS_STOCK, permission="shop.change_product")
def restock_product(
    sku: Annotated[str, Field(description="The product's SKU, such as TEA-EAR-0250")],
    quantity: Annotated[int, Field(ge=1, le=1000, description="How many pieces have arrived")],
) -> ProductInfo:
    """Add pieces to a product's stock, and return the new stock."""
    with transaction.atomic():
        # One UPDATE, and not read, add and save: if two calls run at the same time, both count.
        if not Product.objects.filter(sku=sku).update(stock=F("stock") + quantity):
            raise ToolError(f"There is no product {sku!r}; the resource shop://products lists all SKUs.")
        notify_resource_updated("shop://products")  # is sent after the commit; update() sends no signal
        return ProductInfo.of(Product.objects.get(sku=sku))


def confirm_cancellation(number: int) -> str:
    """The question, with everything that the user must know. It is not asked if the order cannot be cancelled."""
    order = order_in(number, CANCELLABLE, "cancelled")
    return f"Cancel order {number} of {order.customer.name} over € {money(order.total)}?"


@server.write_tool(confirm=confirm_cancellation, preview=True, permission="shop.cancel_order")
def cancel_order(number: OrderNumber) -> OrderDetails:
    """Cancel an order that has not been shipped."""
    return move(number, CANCELLABLE, Order.Status.CANCELLED)


def confirm_refund(number: int, reason: str) -> str:
    order = order_in(number, REFUNDABLE, "refunded")
    # The reason comes from the model. The quotation marks show where it starts and ends.
    return f"Pay € {money(order.total)} for order {number} back to {order.customer.name}, because {reason!r}?"


@server.write_tool(confirm=confirm_refund, preview=True, permission="shop.refund_order")
def refund_order(
    number: OrderNumber,
    reason: Annotated[str, Field(min_length=3, max_length=200, description="Why, for the order's history")],
) -> OrderDetails:
    """Refund an order that has been paid."""
    return move(number, REFUNDABLE, Order.Status.REFUNDED, reason)


# --- Resources and prompts: their arguments arrive as text ---


@server.resource("shop://products", mime_type="application/json")
def price_list() -> list[ProductInfo]:
    """The price list, with the stock of each product."""
    return [ProductInfo.of(product) for product in Product.objects.all()]


@server.resource("shop://orders/{number}", mime_type="application/json")
def order_by_number(number: str) -> OrderDetails:
    """One order: its customer, status, lines and total."""
    order = find_order(number)
    if order is None:
        raise ResourceNotFoundError(f"There is no order {number}.")
    return OrderDetails.of(order)


@server.prompt()
def order_followup(number: Annotated[str, Field(description="The order to write about")]) -> str:
    """Write a follow-up mail to the customer of an order."""
    order = find_order(number)
    if order is None:
        raise MCPError(INVALID_PARAMS, f"There is no order {number}.")
    lines = "\n".join(f"- {line}" for line in order.lines.all())
    return (
        f"Write a short, friendly follow-up mail to {order.customer.name} <{order.customer.email}> about "
        f"order {order.number} of {order.placed_at:%d %B %Y}.\n"
        f"It is {order.get_status_display().lower()} and comes to € {money(order.total)}:\n{lines}\n"
        "Match the mail to the status, and promise nothing that is not written here."
    )


# --- Helpers ---


def order_in(number: int, statuses: tuple[Order.Status, ...], verb: str) -> Order:
    order = find_order(number)
    if order is None:
        raise ToolError(f"There is no order {number}; search_orders lists the orders there are.")
    if order.status not in statuses:
        raise ToolError(f"Order {number} is {order.get_status_display().lower()}: it cannot be {verb}.")
    return order


@transaction.atomic
def move(number: int, statuses: tuple[Order.Status, ...], to: Order.Status, reason: str = "") -> OrderDetails:
    """Change the status of an order, and record the user in the admin's history."""
    # The UPDATE checks the status too: it may have changed while the user was thinking.
    changed = Order.objects.filter(number=number, status__in=statuses).update(status=to)
    order = order_in(number, (to,) if changed else statuses, to.label.lower())
    notify_resource_updated(f"shop://orders/{number}")
    user = get_user()
    if user.pk is not None:  # outside of requests there is no user
        message = f"{to.label} through MCP. {reason}".strip()
        LogEntry.objects.log_actions(user.pk, [order], CHANGE, message, single_object=True)
    return OrderDetails.of(order)


def find_order(number: int | str) -> Order | None:
    try:
        return Order.objects.with_details().get(number=number)
    except (Order.DoesNotExist, ValueError):  # ValueError: the text of a URI or prompt is not a number
        return None


def months_up_to(last: date, count: int) -> list[date]:
    """The first days of `count` months, oldest first, ending with the month of `last`."""
    end = last.year * 12 + last.month
    return [date(index // 12, index % 12 + 1, 1) for index in range(end - count, end)]
