from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("mcp-console/", include("mcp_serving.console.urls"))]
