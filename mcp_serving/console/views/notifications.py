"""Subscriptions: what the server tells its clients, as it happens."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone
from django.views.decorators.http import require_GET
from mcp import MCPError
from mcp.client.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    SubscriptionLost,
    ToolsListChanged,
)

from mcp_serving.console.access import console_view
from mcp_serving.console.pages import catalog_for, page, viewer_of
from mcp_serving.console.served import client_for, is_asgi
from mcp_serving.console.sse import Emit, streaming

MOST_URIS = 100

NAMES = {
    ToolsListChanged: "tools/list_changed",
    PromptsListChanged: "prompts/list_changed",
    ResourcesListChanged: "resources/list_changed",
    ResourceUpdated: "resources/updated",
}


@require_GET
@console_view
async def notifications(request: HttpRequest) -> HttpResponse:
    catalog = await catalog_for(request, await viewer_of(request))
    return await page(request, "notifications.html", {"resources": catalog.resources}, section="notifications")


@require_GET
@console_view
async def stream(request: HttpRequest) -> HttpResponseBase:
    """Subscribe for as long as the page is open: to all lists, and to the resources that it names."""
    viewer = await viewer_of(request)
    if viewer.viewed is not None or not is_asgi(request):
        return HttpResponse(status=403)
    uris = request.GET.getlist("uri")[:MOST_URIS]

    async def work(emit: Emit) -> None:
        try:
            async with (
                client_for(request, request.user) as client,
                client.listen(
                    tools_list_changed=True,
                    prompts_list_changed=True,
                    resources_list_changed=True,
                    resource_subscriptions=uris,
                ) as subscription,
            ):
                emit("open", {"honored": subscription.honored.model_dump(mode="json", exclude_none=True)})
                async for event in subscription:
                    emit("notification", _told(event))
        except (MCPError, SubscriptionLost) as error:
            emit("failed", {"text": str(error)})
        emit("end", {})

    return streaming(work)


def _told(event: Any) -> dict[str, str]:
    return {
        "name": f"notifications/{NAMES.get(type(event), type(event).__name__)}",
        "uri": str(getattr(event, "uri", "")),
        "time": timezone.localtime().strftime("%H:%M:%S") if timezone.is_aware(timezone.now()) else "",
    }
