"""ASGI servers: what each of them leaves open, and how it is closed."""
