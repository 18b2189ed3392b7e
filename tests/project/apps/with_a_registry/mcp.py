from mcp_serving import Registry

registry = Registry()


@registry.read_tool()
def list_nothing() -> list[str]:
    """Nothing."""
    return []


empty = Registry()
