from django.urls import path

from mcp_serving.console.views import apps, connect, notifications, overview, prompts, resources, tools, users

app_name = "mcp_console"

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("tools/", tools.tool_list, name="tools"),
    path("tools/<path:name>/call/", tools.tool_call, name="call"),
    path("tools/<path:name>/", tools.tool_detail, name="tool"),
    path("resources/", resources.resource_list, name="resources"),
    path("resources/read/", resources.read, name="read"),
    path("resources/template/", resources.template, name="template"),
    path("resources/download/", resources.download, name="download"),
    path("resources/frame/", resources.frame, name="frame"),
    path("complete/", prompts.complete, name="complete"),
    path("prompts/", prompts.prompt_list, name="prompts"),
    path("prompts/<path:name>/", prompts.prompt_detail, name="prompt"),
    path("notifications/", notifications.notifications, name="notifications"),
    path("notifications/stream/", notifications.stream, name="notifications_stream"),
    path("apps/", apps.app_frame, name="app_frame"),
    path("apps/request/", apps.app_request, name="app_request"),
    path("connect/", connect.connect_a_client, name="connect"),
    path("view-as/", users.view_as, name="view_as"),
]
