from tests.project.mcp import empty

print("imported")


@empty.tool()
def found() -> str:
    return "found"
