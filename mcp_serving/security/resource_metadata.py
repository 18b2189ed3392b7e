"""How clients find the authorization server of a mount: its 401 response, and its RFC 9728 document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from urllib.parse import quote

from django.conf import settings
from mcp.server.auth.handlers.metadata import ProtectedResourceMetadataHandler
from mcp.server.auth.routes import cors_middleware
from mcp.shared.auth import ProtectedResourceMetadata

from mcp_serving.security.hosts import origin_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

WELL_KNOWN = "/.well-known/oauth-protected-resource"


@runtime_checkable
class SignInVerifier(Protocol):
    """A token verifier whose tokens clients get from an authorization server, after the user has signed in."""

    def authorization_server(self, site: str) -> str:
        """The issuer URL of the authorization server; ``site`` is the URL of this site, without a slash at the end."""

    def scopes_supported(self) -> Sequence[str]:
        """The scopes that a client may ask for where the mount itself names none."""


def resource_url(scope: Scope) -> str:
    """The URL of the mount that a request is for, without a slash at the end: the audience of its tokens."""
    return origin_of(scope) + quote(_path(scope).rstrip("/"))


def site_url(scope: Scope) -> str:
    """The URL of this Django site, without a slash at the end."""
    return origin_of(scope) + quote(_script_name(scope))


class ResourceMetadata:
    """The RFC 9728 documents of one handler.

    Args:
        paths: where the handler is mounted, relative to the router; filled by ``urlpatterns``.
        verifiers: those whose authorization servers are named.
        scopes: returns the scopes that the mount asks for.
    """

    def __init__(
        self, paths: Sequence[str], verifiers: Iterable[SignInVerifier], scopes: Callable[[], Sequence[str]]
    ) -> None:
        self._paths = paths
        self.verifiers = list(verifiers)
        self._scopes = scopes

    def scopes(self) -> list[str]:
        """The scopes that tokens for the mount may need; all that the verifiers know if it needs none."""
        return list(self._scopes()) or list(
            dict.fromkeys(name for each in self.verifiers for name in each.scopes_supported())
        )

    def url(self, scope: Scope) -> str | None:
        """Where the document of the mount is; None if ``urlpatterns`` has not mounted the handler."""
        path = _path(scope).rstrip("/")
        paths = [each.rstrip("/") for each in self._paths]
        mounted = max((each for each in paths if path.endswith(each)), key=len, default=None)
        if mounted is None:
            return None
        return origin_of(scope) + quote(path.removesuffix(mounted) + WELL_KNOWN + mounted)

    def document(self, mounted: str) -> ASGIApp:
        """The ASGI application that answers with the document of the mount at the path ``mounted``."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            prefix = _path(scope).rstrip("/").removesuffix(WELL_KNOWN + mounted)
            document = ProtectedResourceMetadata.model_validate(
                {
                    "resource": origin_of(scope) + quote(prefix + mounted),
                    "authorization_servers": [each.authorization_server(site_url(scope)) for each in self.verifiers],
                    "scopes_supported": self.scopes() or None,
                }
            )
            app = cors_middleware(ProtectedResourceMetadataHandler(document).handle, ["GET", "OPTIONS"])
            await app(scope, receive, send)

        return serve


def challenge(error: str | None, metadata: str | None, scopes: Sequence[str]) -> str:
    """The ``WWW-Authenticate`` header of a refused request (RFC 6750, section 3)."""
    parts = {"error": error, "resource_metadata": metadata, "scope": " ".join(scopes) or None}
    told = ", ".join(f'{name}="{value}"' for name, value in parts.items() if value is not None)
    return f"Bearer {told}".strip()


def _script_name(scope: Scope) -> str:
    """The prefix that Django's own URLs have, by the rule of Django's ASGI handler."""
    return str(settings.FORCE_SCRIPT_NAME or scope.get("root_path", "")).rstrip("/")


def _path(scope: Scope) -> str:
    """The path as the client knows it: a proxy may have removed ``FORCE_SCRIPT_NAME``."""
    script_name = _script_name(scope)
    return script_name + str(scope["path"]).removeprefix(script_name)
