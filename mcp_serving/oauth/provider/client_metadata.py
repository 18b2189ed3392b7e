from __future__ import annotations

from typing import Any

from oauth2_provider.cimd import SafeMetadataFetcher

GRANT_TYPES = ("authorization_code", "refresh_token")


class ClientMetadataFetcher(SafeMetadataFetcher):  # type: ignore[misc] # django-oauth-toolkit has no types
    """django-oauth-toolkit's fetcher, for documents that offer more than this server supports.

    The download itself is django-oauth-toolkit's: over https alone, within 5 seconds and 16 KiB, without redirects,
    and never from an address that is not public. The name is looked up once, and the connection goes to the address
    that was checked, so that a second lookup cannot lead elsewhere.
    """

    def fetch(self, client_id: str) -> tuple[dict[str, Any], int]:
        metadata, max_age = super().fetch(client_id)
        return supported(metadata), max_age


def supported(metadata: dict[str, Any]) -> dict[str, Any]:
    """The part of a client's metadata that this server supports (RFC 7591, section 2.1: a server may choose).

    ChatGPT's document prefers ``private_key_jwt`` and lists ``none`` too; Claude's lists a grant type that it does not
    use here. django-oauth-toolkit 3.4.1 refuses both (its issues 1855 and 1857).
    """
    methods, grant_types = metadata.get("token_endpoint_auth_methods_supported"), metadata.get("grant_types")
    chosen = dict(metadata)
    if isinstance(methods, list) and "none" in methods:
        chosen["token_endpoint_auth_method"] = "none"
    if isinstance(grant_types, list):
        chosen["grant_types"] = [each for each in grant_types if each in GRANT_TYPES]
    return chosen
