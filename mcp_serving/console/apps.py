from django.apps import AppConfig
from django.core import checks
from django.utils.translation import gettext_lazy as _


class ConsoleConfig(AppConfig):
    name = "mcp_serving.console"
    label = "mcp_console"
    verbose_name = _("MCP console")

    def ready(self) -> None:
        from mcp_serving.console.checks import check_installation

        checks.register(check_installation, self.label)
