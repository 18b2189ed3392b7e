"""Everything this package raises for a caller to catch: each derived from the built-in it specialises."""


class InvalidTransport(ValueError):
    """The transport is not one of stdio, http and both."""


class InvalidServer(TypeError):
    """What was given as the MCP server is not a server object of the official SDK."""


class InvalidHTTPServer(TypeError):
    """What was given as ``http_server`` is not a Daphne server, nor a callable that returns one without failing."""


class NoHTTPServer(ValueError):
    """The http and both transports need an ``http_server``."""


class NoApplication(ValueError):
    """The Daphne server has no ASGI application to serve."""


class InvalidEndpoint(ValueError):
    """An endpoint that Twisted cannot use: bad syntax, port out of range, unreadable key or certificate."""


class AccessNotStated(ValueError):
    """``DEBUG`` is off, and a ``StreamableHTTPHandler`` does not say who may call it."""


class InvalidShutdownTimeout(ValueError):
    """The shutdown timeout is negative, NaN, infinite or not a number."""


class ListenError(OSError):
    """The server could not listen: address in use, permission denied."""


class ShutdownTimeout(TimeoutError):
    """The shutdown's deadline passed; the message names what was still running."""


class NoElicitation(RuntimeError):
    """A write tool that asks first was called where the client cannot be asked."""


class UserDeclined(Exception):
    """The user said no to what a write tool asked."""


class UserCanceled(Exception):
    """The user closed the question of a write tool without an answer."""
