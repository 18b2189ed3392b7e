from django.apps import AppConfig
from django.core import checks


class OpenTelemetryConfig(AppConfig):
    name = "mcp_serving.otel"
    label = "mcp_otel"
    verbose_name = "OpenTelemetry for MCP"

    def ready(self) -> None:
        from mcp_serving.otel.checks import check_api
        from mcp_serving.otel.install import install

        checks.register(check_api, self.label)
        install()
