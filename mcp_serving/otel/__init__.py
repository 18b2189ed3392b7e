"""OpenTelemetry: more attributes for the spans of the SDK, metrics, and one trace across workers.

It is a Django app of its own: add ``"mcp_serving.otel"`` to ``INSTALLED_APPS``. At run time it needs the API of
OpenTelemetry only, which the SDK installs. The project chooses the exporters.
"""
