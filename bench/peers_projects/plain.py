"""No MCP at all: a Django view that answers the same request with JSON."""

import asyncio
import json

from django.core.asgi import get_asgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path


async def view(request: HttpRequest) -> JsonResponse:
    arguments = json.loads(request.body)["params"]["arguments"]
    if "seconds" in arguments:
        await asyncio.sleep(arguments["seconds"])
        return JsonResponse({"text": "waited"})
    return JsonResponse({"text": arguments["text"]})


urlpatterns = [path("mcp", view)]
application = get_asgi_application()
