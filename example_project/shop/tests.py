"""Tests of the shop's MCP tools, in this process, with the test's database, as any user."""

from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import TestCase

from example_project.mcp import server
from mcp_serving.testing import Answers, client

from .models import Customer, Order, Product


class OrderToolTests(TestCase):
    manager: User
    clerk: User

    @classmethod
    def setUpTestData(cls) -> None:
        cls.manager = User.objects.create_user("manager")
        cls.manager.user_permissions.set(Permission.objects.filter(content_type__app_label="shop"))
        cls.clerk = User.objects.create_user("clerk")
        cls.clerk.user_permissions.add(Permission.objects.get(codename="cancel_order"))
        customer = Customer.objects.create(name="Mill Lane Café", email="orders@example.com")
        product = Product.objects.create(sku="TEA", name="Tea", price="12.50")
        for number, status in enumerate([Order.Status.OPEN, Order.Status.PAID, Order.Status.SHIPPED], start=1):
            order = Order.objects.create(number=number, customer=customer, status=status)
            order.lines.create(product=product, quantity=2, unit_price="12.50")

    async def test_an_order_is_cancelled_after_a_yes(self) -> None:
        answers = Answers(True)
        async with client(server, user=self.clerk, answers=answers) as session:
            result = await session.call_tool("cancel_order", {"number": 1})
        self.assertFalse(result.is_error)
        (question,) = answers.questions
        self.assertTrue(question.startswith("Cancel order 1 of Mill Lane Café over € 25.00?\nThis would\n"))
        self.assertIn("- change Order 1: status Open -> Cancelled\n", question)
        self.assertEqual((await Order.objects.aget(number=1)).status, Order.Status.CANCELLED)
        self.assertEqual((await LogEntry.objects.aget()).user_id, self.clerk.pk)

    async def test_an_order_stays_what_it_was_after_a_no(self) -> None:
        async with client(server, user=self.clerk, answers=[False]) as session:
            result = await session.call_tool("cancel_order", {"number": 1})
        self.assertTrue(result.is_error)
        self.assertEqual((await Order.objects.aget(number=1)).status, Order.Status.OPEN)

    async def test_an_order_that_cannot_be_cancelled_is_not_asked_about(self) -> None:
        answers = Answers()
        async with client(server, user=self.clerk, answers=answers) as session:
            for number in (3, 99):
                result = await session.call_tool("cancel_order", {"number": number})
                self.assertTrue(result.is_error)
        self.assertEqual(answers.questions, [])

    async def test_refunding_is_for_managers(self) -> None:
        arguments = {"number": 2, "reason": "broken cups"}
        async with client(server, user=self.clerk, answers=[]) as session:
            result = await session.call_tool("refund_order", arguments)
            self.assertIn("Unknown tool", str(result.content))
        answers = Answers(True)
        async with client(server, user=self.manager, answers=answers, mode="legacy") as session:
            await session.call_tool("refund_order", arguments)
        self.assertEqual((await Order.objects.aget(number=2)).status, Order.Status.REFUNDED)
        (question,) = answers.questions
        self.assertTrue(
            question.startswith("Pay € 25.00 for order 2 back to Mill Lane Café, because 'broken cups'?\nThis would\n")
        )

    async def test_everybody_may_read(self) -> None:
        async with client(server) as session:
            result = await session.call_tool("search_orders", {})
        assert result.structured_content is not None
        self.assertEqual(result.structured_content["found"], 3)
