from django.apps import AppConfig
from django.core import checks


class CallsConfig(AppConfig):
    name = "mcp_serving.calls"
    label = "mcp_calls"
    verbose_name = "MCP calls"
    default_auto_field = "django.db.models.BigAutoField"  # so that the migration fits every project

    def ready(self) -> None:
        from mcp_serving.calls.checks import check_users
        from mcp_serving.calls.writer import store
        from mcp_serving.signals import listeners

        checks.register(check_users, self.label)
        listeners.append(store)
