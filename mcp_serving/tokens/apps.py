from django.apps import AppConfig
from django.core import checks


class TokensConfig(AppConfig):
    name = "mcp_serving.tokens"
    label = "mcp_tokens"
    verbose_name = "MCP tokens"
    default_auto_field = "django.db.models.BigAutoField"  # so that the migration fits every project

    def ready(self) -> None:
        from mcp_serving.tokens.checks import check_users

        checks.register(check_users, self.label)
