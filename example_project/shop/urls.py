from django.urls import path
from django.views.generic import RedirectView

from . import views

app_name = "shop"

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="shop:order_list")),
    path("orders/", views.order_list, name="order_list"),
    path("orders/<int:number>/", views.order_detail, name="order_detail"),
    path("healthz", views.healthz, name="healthz"),
]
