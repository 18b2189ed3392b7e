from django.apps import AppConfig
from django.core import checks


class MCPServingConfig(AppConfig):
    name = "mcp_serving"
    verbose_name = "MCP serving"

    def ready(self) -> None:
        from mcp_serving.checks import check_import, check_project, check_settings

        for check in (check_settings, check_project):
            checks.register(check, self.label)
        checks.register(check_import, self.label, deploy=True)
