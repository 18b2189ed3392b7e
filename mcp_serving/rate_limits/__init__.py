"""How many calls one caller may make in a time: at a handler, and at a tool."""
