"""The console: see and try the project's MCP server in the browser, as a user of the site.

A Django app of its own: list ``"mcp_serving.console"`` and ``"django_native_jsonform"`` in ``INSTALLED_APPS``, and
include ``"mcp_serving.console.urls"`` in the URLs of the project.
"""
