import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models
from oauth2_provider.settings import oauth2_settings


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        migrations.swappable_dependency(oauth2_settings.APPLICATION_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="ConnectedApp",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("scope", models.TextField(blank=True, editable=False, verbose_name="scopes")),
                (
                    "connected",
                    models.DateTimeField(default=django.utils.timezone.now, editable=False, verbose_name="connected"),
                ),
                (
                    "last_used",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="last used"),
                ),
                (
                    "application",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="mcp_connections",
                        to=oauth2_settings.APPLICATION_MODEL,
                        verbose_name="app",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="mcp_connected_apps",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="user",
                    ),
                ),
            ],
            options={
                "verbose_name": "connected app",
                "verbose_name_plural": "connected apps",
                "ordering": ("-connected", "-pk"),
                "constraints": [
                    models.UniqueConstraint(fields=("user", "application"), name="mcp_oauth_one_connection")
                ],
            },
        ),
    ]
