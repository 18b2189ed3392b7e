"""The routes of tests.project.asgi, with the health endpoints in front."""

from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import re_path

from mcp_serving import health
from tests.project import asgi

routes = [
    *health.urlpatterns("health"),
    *asgi.handler.urlpatterns("mcp"),
    *asgi.second.urlpatterns("second/mcp"),
    re_path(r"", asgi.django_asgi_app),
]
application = ProtocolTypeRouter({"http": URLRouter(routes)})
