"""Django inside a tool: where it runs, who calls, what may be called, and what asks first."""
