from django.apps import AppConfig, apps
from django.core import checks


class OAuthConfig(AppConfig):
    name = "mcp_serving.oauth"
    label = "mcp_oauth"
    verbose_name = "MCP sign-in"
    default_auto_field = "django.db.models.BigAutoField"  # so that the migration fits every project

    def ready(self) -> None:
        from mcp_serving.oauth.checks import check_oauth, check_scopes

        checks.register(check_oauth, checks.Tags.security)
        checks.register(check_scopes, checks.Tags.security, deploy=True)
        if not apps.is_installed("oauth2_provider"):
            return  # the check says so
        from mcp_serving.oauth.models import connect_signals

        connect_signals()
