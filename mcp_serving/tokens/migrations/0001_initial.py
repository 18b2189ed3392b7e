import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

import mcp_serving.tokens.models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Token",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    models.CharField(
                        blank=True,
                        help_text="Its purpose, such as a device.",
                        max_length=100,
                        validators=[mcp_serving.tokens.models.validate_name],
                    ),
                ),
                ("key_id", models.CharField(editable=False, max_length=12, unique=True)),
                ("digest", models.CharField(editable=False, max_length=64)),
                (
                    "scope",
                    models.CharField(
                        blank=True,
                        help_text="Separated by spaces.",
                        max_length=500,
                        validators=[mcp_serving.tokens.models.validate_scope],
                        verbose_name="scopes",
                    ),
                ),
                ("created", models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                (
                    "expires",
                    models.DateTimeField(
                        blank=True, help_text="Leave empty for a token that never expires.", null=True
                    ),
                ),
                ("revoked", models.DateTimeField(blank=True, editable=False, null=True)),
                ("last_used", models.DateTimeField(blank=True, editable=False, null=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="mcp_tokens",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("-created", "-pk"),
            },
        ),
    ]
