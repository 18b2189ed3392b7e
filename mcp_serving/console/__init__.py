"""The console: see and try the project's MCP server in the browser, as a user of the site.

It is two Django apps: list ``"mcp_serving.console"`` and ``"mcp_serving.console.form_library"`` in ``INSTALLED_APPS``,
and include ``"mcp_serving.console.urls"`` in the URLs of the project.
"""
