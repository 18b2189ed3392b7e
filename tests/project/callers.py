"""Who calls, as the tests say it."""

from typing import Any

from django.contrib.auth.models import User


def user_from_header(app: Any) -> Any:
    async def with_user(scope: Any, receive: Any, send: Any) -> None:
        name = dict(scope["headers"]).get(b"x-user")
        if name is not None:
            scope = {**scope, "user": await User.objects.aget(username=name.decode())}
        await app(scope, receive, send)

    return with_user
