import asyncio
import time
from collections.abc import AsyncIterator

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path

from tests.project.events import note


def quick(request: HttpRequest) -> HttpResponse:
    return HttpResponse("quick")


def slow(request: HttpRequest) -> HttpResponse:
    """A sync view: it blocks a thread."""
    note("view started")
    time.sleep(float(request.GET["seconds"]))
    note("view finished")
    return HttpResponse("slow view finished")


async def slow_async(request: HttpRequest) -> HttpResponse:
    note("async view started")
    await asyncio.sleep(float(request.GET["seconds"]))
    return HttpResponse("slow async view finished")


def broken_stream(request: HttpRequest) -> StreamingHttpResponse:
    """Fails after the response has started."""

    async def parts() -> AsyncIterator[str]:
        yield "the first part"
        raise RuntimeError("the stream broke")

    return StreamingHttpResponse(parts())


urlpatterns = [
    path("quick/", quick),
    path("slow/", slow),
    path("slow-async/", slow_async),
    path("broken-stream/", broken_stream),
]
