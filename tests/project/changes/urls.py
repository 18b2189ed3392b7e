"""A view for each way of telling that something has changed."""

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path

from mcp_serving import anotify_resource_updated, notify_resource_updated
from tests.project.changes.models import Line, Order


def told(request: HttpRequest, number: str) -> HttpResponse:
    notify_resource_updated(f"changes://orders/{number}")
    return HttpResponse("told")


def created(request: HttpRequest, number: str) -> HttpResponse:
    Order.objects.create(number=number)
    return HttpResponse("created")


def lined(request: HttpRequest, number: str) -> HttpResponse:
    Line.objects.create(order=Order.objects.get(number=number))
    return HttpResponse("lined")


def deleted(request: HttpRequest, number: str) -> HttpResponse:
    Order.objects.get(number=number).delete()
    return HttpResponse("deleted")


def rolled_back(request: HttpRequest, number: str) -> HttpResponse:
    with transaction.atomic():
        Order.objects.create(number=number)
        notify_resource_updated(f"changes://orders/{number}")
        transaction.set_rollback(True)
    return HttpResponse("rolled back")


def committed(request: HttpRequest, number: str) -> HttpResponse:
    """A second event, of a database without a transaction, is told after the first one, and goes before it."""
    with transaction.atomic():
        notify_resource_updated(f"changes://orders/{number}")
        notify_resource_updated(f"changes://orders/before-{number}", using="other")
    return HttpResponse("committed")


async def atold(request: HttpRequest, number: str) -> HttpResponse:
    await anotify_resource_updated(f"changes://orders/{number}")
    return HttpResponse("told")


async def told_in_the_loop(request: HttpRequest, number: str) -> HttpResponse:
    notify_resource_updated(f"changes://orders/{number}")
    return HttpResponse("told")


async def asaved(request: HttpRequest, number: str) -> HttpResponse:
    await Order.objects.acreate(number=number)
    return HttpResponse("created")


async def arolled_back(request: HttpRequest, number: str) -> HttpResponse:
    """In a transaction that is open in the thread of the async ORM."""
    transaction_there = transaction.atomic()
    await sync_to_async(transaction_there.__enter__)()
    await Order.objects.acreate(number=number)
    await anotify_resource_updated(f"changes://orders/{number}")
    await sync_to_async(transaction.set_rollback)(True)
    await sync_to_async(transaction_there.__exit__)(None, None, None)
    return HttpResponse("rolled back")


VIEWS = [
    told,
    created,
    lined,
    deleted,
    rolled_back,
    committed,
    atold,
    told_in_the_loop,
    asaved,
    arolled_back,
]

urlpatterns = [path(f"{view.__name__}/<number>/", view) for view in VIEWS]
