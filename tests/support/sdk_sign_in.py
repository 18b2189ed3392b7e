"""The SDK's OAuth client, whose user signs in with a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import httpx2
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from tests.support.browser import Browser
from tests.support.harness import DEADLINE
from tests.support.sign_in import PASSWORD, Callback, agree, log_in, until


class Storage:
    """The tokens and the registration of the SDK's client."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class SignInAgain(Exception):
    """The client would send its user to the browser once more."""


@dataclass
class SDKClient:
    """The SDK's client, whose user agrees in the browser as often as ``consents`` allows."""

    url: str
    browser: Browser
    callback: Callback
    http: Callable[..., httpx2.AsyncClient] = httpx2.AsyncClient
    user: str = "ann"
    password: str = PASSWORD
    consents: int = 1
    page: str = ""

    def __post_init__(self) -> None:
        metadata = OAuthClientMetadata(
            client_name="The SDK's client",
            redirect_uris=[self.callback.url],  # type: ignore[list-item] # pydantic reads it
            grant_types=["authorization_code", "refresh_token"],
            token_endpoint_auth_method="none",
        )
        self.storage = Storage()
        self.auth = OAuthClientProvider(self.url, metadata, self.storage, self._show_browser, self._wait_for_callback)

    async def _show_browser(self, url: str) -> None:
        if self.consents == 0:
            raise SignInAgain
        self.consents -= 1
        await anyio.to_thread.run_sync(self._sign_in, url)

    def _sign_in(self, url: str) -> None:
        page = self.browser.open(url)
        if until(page, "location.pathname").endswith("/login/"):
            log_in(page, self.user, self.password)
        self.page = agree(page)

    async def _wait_for_callback(self) -> AuthorizationCodeResult:
        return AuthorizationCodeResult(**await anyio.to_thread.run_sync(self.callback.wait))

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Client]:
        async with (
            self.http(auth=self.auth, timeout=DEADLINE) as http,
            Client(streamable_http_client(self.url, http_client=http)) as client,
        ):
            yield client


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions in an exception group."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves(each)]
    return [error]


async def text(client: Client, tool: str) -> str:
    """The text of a tool's result."""
    return str((await client.call_tool(tool, {})).content[0].text)  # type: ignore[union-attr]
