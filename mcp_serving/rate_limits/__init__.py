"""How many calls one caller may make in a period: at a handler, and at a tool."""
