from django.apps import AppConfig


class OpenTelemetryConfig(AppConfig):
    name = "mcp_serving.otel"
    label = "mcp_otel"
    verbose_name = "OpenTelemetry for MCP"

    def ready(self) -> None:
        from mcp_serving.otel.install import install

        install()
