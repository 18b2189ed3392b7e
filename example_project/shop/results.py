"""The results of the tools in mcp.py. The SDK publishes each model as the output schema of its tool."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Self

from pydantic import BaseModel, Field

from .models import Order, Product

# Money is sent as text: most clients would turn a JSON number into a binary float.
Money = Annotated[str, Field(pattern=r"^-?\d+\.\d\d$", description="Euros with two decimals, such as 12.50")]
Month = Annotated[str, Field(pattern=r"^\d{4}-\d\d$", description="Year and month, such as 2025-03")]


def money(amount: Decimal) -> Money:
    return f"{amount:.2f}"


class ProductInfo(BaseModel):
    sku: str
    name: str
    price: Money
    stock: int

    @classmethod
    def of(cls, product: Product) -> Self:
        return cls(sku=product.sku, name=product.name, price=money(product.price), stock=product.stock)


class OrderSummary(BaseModel):
    number: int
    customer: str
    status: Order.Status
    placed_at: datetime
    total: Money

    @classmethod
    def of(cls, order: Order) -> Self:
        return cls(
            number=order.number,
            customer=order.customer.name,
            status=Order.Status(order.status),
            placed_at=order.placed_at,
            total=money(order.total),
        )


class FoundOrders(BaseModel):
    found: int = Field(description="How many orders match. With a limit, fewer may be listed")
    orders: list[OrderSummary]


class Line(BaseModel):
    sku: str
    product: str
    quantity: int
    unit_price: Money
    total: Money


class OrderDetails(BaseModel):
    order: OrderSummary
    email: str
    lines: list[Line]

    @classmethod
    def of(cls, order: Order) -> Self:
        lines = [
            Line(
                sku=line.product.sku,
                product=line.product.name,
                quantity=line.quantity,
                unit_price=money(line.unit_price),
                total=money(line.total),
            )
            for line in order.lines.all()
        ]
        return cls(order=OrderSummary.of(order), email=order.customer.email, lines=lines)


class MonthRevenue(BaseModel):
    month: Month
    orders: int
    revenue: Money


class MonthSales(MonthRevenue):
    best_seller: str | None = Field(description="The product that was sold most often, if any")


class SalesReport(BaseModel):
    orders: int
    revenue: Money
    months: list[MonthSales]
