"""The URLs of the authorization server: ``path("", include("mcp_serving.oauth.urls"))`` in the project's own.

They belong to the root of the site, because clients look for the documents below ``/.well-known/`` there.
"""

from __future__ import annotations

from django.urls import include, path
from oauth2_provider.views import RevokeTokenView, UserInfoView

from mcp_serving.oauth.views.authorization import AuthorizationView, switch_account
from mcp_serving.oauth.views.browsers import open_to_scripts
from mcp_serving.oauth.views.connected_apps import ConnectedAppsView, DisconnectView
from mcp_serving.oauth.views.discovery import DiscoveryView, KeysView, OpenIDDiscoveryView
from mcp_serving.oauth.views.registration import RegistrationManagementView, RegistrationView
from mcp_serving.oauth.views.token import TokenView

revoke = open_to_scripts(RevokeTokenView.as_view())
userinfo = open_to_scripts(UserInfoView.as_view())

provider = [  # with django-oauth-toolkit's names, which it looks up itself
    path(".well-known/oauth-authorization-server", DiscoveryView.as_view(), name="oauth-server-metadata"),
    path(
        ".well-known/oauth-authorization-server/<path:issuer_path>",
        DiscoveryView.as_view(),
        name="oauth-server-metadata-issuer",
    ),
    path(".well-known/openid-configuration", OpenIDDiscoveryView.as_view(), name="oidc-connect-discovery-info"),
    path(".well-known/openid-configuration/<path:issuer_path>", OpenIDDiscoveryView.as_view()),
    path(".well-known/jwks.json", KeysView.as_view(), name="jwks-info"),
    path("oauth/authorize/", AuthorizationView.as_view(), name="authorize"),
    path("oauth/token/", TokenView.as_view(), name="token"),
    path("oauth/revoke/", revoke, name="revoke-token"),
    path("oauth/userinfo/", userinfo, name="user-info"),
    path("oauth/register/", RegistrationView.as_view(), name="dcr-register"),
    path("oauth/register/<str:client_id>/", RegistrationManagementView.as_view(), name="dcr-register-management"),
]

pages = [
    path("oauth/connected-apps/", ConnectedAppsView.as_view(), name="connected-apps"),
    path("oauth/connected-apps/<int:pk>/disconnect/", DisconnectView.as_view(), name="disconnect"),
    path("oauth/switch-account/", switch_account, name="switch-account"),
]

urlpatterns = [path("", include((provider, "oauth2_provider"))), path("", include((pages, "mcp_oauth")))]
