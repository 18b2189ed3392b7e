"""What a router mounts: the handler, and what stands between an ASGI server and the SDK."""
