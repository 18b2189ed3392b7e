"""See and try an MCP server in the same process, as one of its users: for the command and for the console."""
