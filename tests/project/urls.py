import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path

from tests.project.notes import note


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
    try:
        await asyncio.sleep(float(request.GET["seconds"]))
    finally:
        note("async view finally")
    return HttpResponse("slow async view finished")


def broken_stream(request: HttpRequest) -> StreamingHttpResponse:
    """Fails after the response has started."""

    async def parts() -> AsyncIterator[str]:
        yield "the first part"
        raise RuntimeError("the stream broke")

    return StreamingHttpResponse(parts())


def flood(request: HttpRequest) -> StreamingHttpResponse:
    """So many megabytes, each made when it is sent."""

    async def parts() -> AsyncIterator[bytes]:
        note("flood view started")
        try:
            for number in range(int(request.GET["megabytes"])):
                yield b"%08d" % number * 2**17
        finally:
            note("flood view finally")

    return StreamingHttpResponse(parts())


def events(request: HttpRequest) -> StreamingHttpResponse:
    """Server-sent events without an end."""

    async def parts() -> AsyncIterator[str]:
        note("events view started")
        try:
            yield "data: first\n\n"
            await asyncio.Event().wait()
        finally:
            note("events view finally")

    return StreamingHttpResponse(parts(), content_type="text/event-stream")


def resident_memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


async def internals(request: HttpRequest) -> JsonResponse:
    """What could grow: bench/soak.py compares it."""
    gc.collect()
    return JsonResponse(
        {
            "tasks": len(asyncio.all_tasks()),
            "threads": threading.active_count(),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "memory": resident_memory(),
        }
    )


urlpatterns = [
    path("internals/", internals),
    path("quick/", quick),
    path("slow/", slow),
    path("slow-async/", slow_async),
    path("broken-stream/", broken_stream),
    path("flood/", flood),
    path("events/", events),
]
