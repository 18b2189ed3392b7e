"""Who may call an MCP endpoint, and for which host and origin."""
