from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from .models import Order


def order_list(request: HttpRequest) -> HttpResponse:
    """All orders, newest first, or the orders with one `?status=`."""
    orders = Order.objects.with_details()
    status = request.GET.get("status")
    if status:
        orders = orders.filter(status=status)
    page = Paginator(orders, per_page=25).get_page(request.GET.get("page"))
    context = {"page": page, "status": status, "statuses": Order.Status.choices}
    return render(request, "shop/order_list.html", context)


def order_detail(request: HttpRequest, number: int) -> HttpResponse:
    order = get_object_or_404(Order.objects.with_details(), number=number)
    return render(request, "shop/order_detail.html", {"order": order})


def healthz(request: HttpRequest) -> HttpResponse:
    """Show that the process answers, without a database query."""
    return HttpResponse("ok", content_type="text/plain")
