from django.contrib.auth.views import LoginView
from django.urls import include, path

from tests.project.urls_with_admin import urlpatterns as with_admin

urlpatterns = [
    *with_admin,
    path("login/", LoginView.as_view(template_name="login.html"), name="login"),
    path("", include("mcp_serving.oauth.urls")),
]
