"""Fill the shop with one invented year of orders, the same on every machine."""

import os
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import product
from random import Random
from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction
from django.utils.crypto import get_random_string
from django.utils.text import slugify

from example_project.shop.models import Customer, Order, OrderLine, Product

# Fixed dates, so that documents and tests can name orders, dates and totals.
YEAR_START = datetime(2025, 1, 1, tzinfo=UTC)
YEAR_END = datetime(2026, 1, 1, tzinfo=UTC)
ORDERS = 300

PRODUCTS = [
    ("COF-ESP-1000", "Espresso beans, 1 kg", "24.90"),
    ("COF-FIL-1000", "Filter beans, 1 kg", "22.50"),
    ("COF-DEC-0500", "Decaf beans, 500 g", "14.80"),
    ("TEA-ASS-0250", "Assam, 250 g", "11.90"),
    ("TEA-DAR-0250", "Darjeeling, 250 g", "16.40"),
    ("TEA-EAR-0250", "Earl Grey, 250 g", "12.60"),
    ("TEA-SEN-0250", "Sencha, 250 g", "15.20"),
    ("TEA-ROO-0250", "Rooibos, 250 g", "9.90"),
    ("ACC-CUP-0006", "Cups, set of 6", "32.00"),
    ("ACC-FIL-0100", "Paper filters, box of 100", "4.75"),
    ("ACC-KET-0001", "Pour-over kettle", "49.00"),
    ("ACC-SCA-0001", "Brewing scale", "38.50"),
]
PLACES = ["Harbour", "Station", "Old Town", "Riverside", "Market", "Garden", "Lighthouse", "Mill Lane"]
KINDS = ["Café", "Bakery", "Bistro", "Tearoom", "Hotel"]
# The share of each status, in percent.
RECENT = {Order.Status.OPEN: 50, Order.Status.PAID: 25, Order.Status.SHIPPED: 25}
OLDER = {
    Order.Status.SHIPPED: 84,
    Order.Status.PAID: 4,
    Order.Status.CANCELLED: 8,
    Order.Status.REFUNDED: 4,
}
# The permissions of each role. The users have no password, because everybody can read this file.
CLERK = ["view_order", "view_customer", "view_product", "change_product", "cancel_order"]
ROLES = {"clerk": CLERK, "manager": [*CLERK, "change_order", "change_customer", "refund_order"]}


class Command(BaseCommand):
    help = "Creates demo products, customers and orders in an empty shop, and a user for each role."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--reset", action="store_true", help="first delete everything in the shop")
        parser.add_argument("--demo-user", action="store_true", help="give the user demo a new password, and print it")

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        create_users()
        if options["reset"]:
            for model in (Order, Customer, Product):  # in this order: customers and products are protected
                model._default_manager.all().delete()
        if any(model._default_manager.exists() for model in (Order, Customer, Product)):
            self.stdout.write("The shop is not empty, so nothing was created. --reset deletes everything first.")
        else:
            self.create(Random(1))
            self.stdout.write(
                f"Created {Product.objects.count()} products, {Customer.objects.count()} customers "
                f"and {Order.objects.count()} orders."
            )
        if options["demo_user"]:
            self.tell_how_to_sign_in(create_demo_user())

    def tell_how_to_sign_in(self, password: str) -> None:
        port = os.environ.get("EXAMPLE_PORT", "8000")
        self.stdout.write(f"The console is at http://localhost:{port}/mcp-console/, for staff such as the user demo.")
        self.stdout.write(
            f"To sign in from an MCP client, add http://localhost:{port}/account/mcp to it. In the browser that it "
            f"opens, or at the console, log in as demo with the password {password}"
        )

    def create(self, random: Random) -> None:
        products = Product.objects.bulk_create(
            Product(sku=sku, name=name, price=Decimal(price), stock=random.randint(0, 120))
            for sku, name, price in PRODUCTS
        )
        customers = Customer.objects.bulk_create(
            Customer(name=f"{place} {kind}", email=f"orders@{slugify(f'{place} {kind}')}.example")
            for place, kind in product(PLACES, KINDS)
        )
        minutes = (YEAR_END - YEAR_START) // timedelta(minutes=1)
        moments = sorted(YEAR_START + timedelta(minutes=random.randrange(minutes)) for _ in range(ORDERS))
        orders = Order.objects.bulk_create(
            Order(
                number=number,
                customer=random.choice(customers),
                status=pick_status(random, when),
                placed_at=when,
            )
            for number, when in enumerate(moments, start=1001)
        )
        OrderLine.objects.bulk_create(
            OrderLine(order=order, product=item, quantity=random.randint(1, 12), unit_price=item.price)
            for order in orders
            for item in random.sample(products, k=random.randint(1, 4))
        )


def create_users() -> None:
    """Create a group for each role, with one user, unless they exist."""
    for role, codenames in ROLES.items():
        group, is_new = Group.objects.get_or_create(name=role)
        if is_new:
            group.permissions.set(Permission.objects.filter(content_type__app_label="shop", codename__in=codenames))
        if not User.objects.filter(username=role).exists():
            User.objects.create_user(role, is_staff=True).groups.add(group)


def create_demo_user() -> str:
    """A clerk with a password that is new each time: nobody can know it from this file. Returns the password."""
    password = get_random_string(12)
    user, _ = User.objects.get_or_create(username="demo", defaults={"is_staff": True})
    user.set_password(password)
    user.save()
    user.groups.add(Group.objects.get(name="clerk"))
    may_create_tokens = Permission.objects.filter(content_type__app_label="mcp_tokens", codename="add_token")
    user.user_permissions.set(may_create_tokens)
    return password


def pick_status(random: Random, when: datetime) -> Order.Status:
    """Choose a likely status: recent orders are often open, older orders are mostly shipped."""
    weights = RECENT if when > YEAR_END - timedelta(days=30) else OLDER
    return random.choices(list(weights), list(weights.values()))[0]
