from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "example_project.shop"
    label = "shop"

    def ready(self) -> None:
        from mcp_serving import notify_on_change

        from .models import Order, OrderLine, Product

        # After each change, in the admin too, the clients that have subscribed are notified.
        notify_on_change(Order, "shop://orders/{number}")
        notify_on_change(OrderLine, "shop://orders/{order.number}")
        notify_on_change(Product, "shop://products")
