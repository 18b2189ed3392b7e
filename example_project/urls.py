from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", include("mcp_serving.oauth.urls")),
    path("mcp-console/", include("mcp_serving.console.urls")),
    path("", include("example_project.shop.urls")),
]
