"""A small wholesale shop for coffee and tea: products, customers, and orders with lines."""

from __future__ import annotations

from decimal import Decimal

from django.db import models
from django.db.models import F, Q, Sum
from django.urls import reverse
from django.utils import timezone

# The total of all order lines of a query, for aggregates. Order.total is for one order.
REVENUE = Sum(F("lines__quantity") * F("lines__unit_price"), default=Decimal(0))


class Product(models.Model):
    sku = models.CharField("SKU", max_length=32, unique=True)
    name = models.CharField(max_length=100)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    stock = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ("name",)
        constraints = (models.CheckConstraint(condition=Q(price__gte=0), name="shop_product_price"),)

    def __str__(self) -> str:
        return f"{self.name} ({self.sku})"


class Customer(models.Model):
    name = models.CharField(max_length=100)
    email = models.EmailField(unique=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class OrderQuerySet(models.QuerySet["Order"]):
    def with_details(self) -> OrderQuerySet:
        """Also fetch customers, lines and products, with two more queries for any number of orders."""
        return self.select_related("customer").prefetch_related("lines__product")

    def sold(self) -> OrderQuerySet:
        """Only the orders that count as revenue."""
        return self.filter(status__in=(Order.Status.PAID, Order.Status.SHIPPED))


class Order(models.Model):
    class Status(models.TextChoices):
        OPEN = "open", "Open"
        PAID = "paid", "Paid"
        SHIPPED = "shipped", "Shipped"
        CANCELLED = "cancelled", "Cancelled"
        REFUNDED = "refunded", "Refunded"

    number = models.PositiveIntegerField(unique=True)
    customer = models.ForeignKey(Customer, on_delete=models.PROTECT, related_name="orders")
    status = models.CharField(max_length=10, choices=Status, default=Status.OPEN)
    placed_at = models.DateTimeField(default=timezone.now)

    objects = OrderQuerySet.as_manager()

    class Meta:
        ordering = ("-placed_at", "-number")
        permissions = (("cancel_order", "Can cancel order"), ("refund_order", "Can refund order"))
        indexes = (
            models.Index(fields=["-placed_at", "-number"], name="shop_order_newest"),
            models.Index(fields=["status", "-placed_at"], name="shop_order_status_newest"),
        )

    def __str__(self) -> str:
        return f"Order {self.number}"

    def get_absolute_url(self) -> str:
        return reverse("shop:order_detail", args=[self.number])

    @property
    def total(self) -> Decimal:
        return sum((line.total for line in self.lines.all()), Decimal(0))


class OrderLine(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="lines")
    product = models.ForeignKey(Product, on_delete=models.PROTECT, related_name="order_lines")
    quantity = models.PositiveIntegerField(default=1)
    # A copy: if the price of the product changes, the price of an old order must not.
    unit_price = models.DecimalField(max_digits=8, decimal_places=2)

    class Meta:
        ordering = ("pk",)
        constraints = (
            models.UniqueConstraint(fields=["order", "product"], name="shop_orderline_product_once"),
            models.CheckConstraint(condition=Q(quantity__gte=1), name="shop_orderline_quantity"),
            models.CheckConstraint(condition=Q(unit_price__gte=0), name="shop_orderline_unit_price"),
        )

    def __str__(self) -> str:
        return f"{self.quantity} x {self.product.name}"

    @property
    def total(self) -> Decimal:
        return self.quantity * self.unit_price
