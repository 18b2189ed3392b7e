from django.apps import AppConfig


class ChangesConfig(AppConfig):
    name = "tests.project.changes"

    def ready(self) -> None:
        from mcp_serving import notify_on_change
        from tests.project.changes.models import Line, Order

        notify_on_change(Order, "changes://orders/{number}", lists=True)
        notify_on_change(Line, "changes://orders/{order.number}")
