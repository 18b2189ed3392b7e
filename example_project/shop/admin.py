# The type stubs want ModelAdmin[...], which Django's ModelAdmin does not support at run time:
# mypy: disable-error-code="type-arg"
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from .models import Customer, Order, OrderLine, Product


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    list_display = ("name", "sku", "price", "stock")
    search_fields = ("name", "sku")


@admin.register(Customer)
class CustomerAdmin(admin.ModelAdmin):
    list_display = ("name", "email")
    search_fields = ("name", "email")


class OrderLineInline(admin.TabularInline):
    model = OrderLine
    autocomplete_fields = ("product",)
    extra = 0


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ("number", "customer", "status", "placed_at", "total")
    list_filter = ("status", "placed_at")
    list_select_related = ("customer",)
    date_hierarchy = "placed_at"
    search_fields = ("=number", "customer__name", "customer__email")
    autocomplete_fields = ("customer",)
    inlines = (OrderLineInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Order]:
        return super().get_queryset(request).prefetch_related("lines")  # for the totals
