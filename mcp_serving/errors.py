"""The exceptions that callers may want to catch. Each one derives from the built-in exception that it specialises."""


class InvalidTransport(ValueError):
    """The transport is not stdio, http or both."""


class InvalidServer(TypeError):
    """The object given as the MCP server is not a server of the official SDK."""


class InvalidHTTPServer(TypeError):
    """The object given as ``http_server`` is neither a Daphne server nor a callable that returns one."""


class NoHTTPServer(ValueError):
    """The transports http and both need an ``http_server``."""


class NoApplication(ValueError):
    """The Daphne server has no ASGI application to serve."""


class InvalidEndpoint(ValueError):
    """Twisted cannot use an endpoint: bad syntax, a port out of range, an unreadable key or certificate."""


class AccessNotStated(ValueError):
    """``DEBUG`` is off, and a ``StreamableHTTPHandler`` does not say who may call it."""


class InvalidShutdownTimeout(ValueError):
    """The shutdown timeout or delay is negative, NaN, infinite or not a number."""


class ListenError(OSError):
    """The server could not listen: the address is in use, or permission was denied."""


class ReactorHasRun(RuntimeError):
    """A Daphne server has run in this process before. Twisted's reactor cannot run a second time."""


class ShutdownTimeout(TimeoutError):
    """The deadline of the shutdown passed; the message names the calls that were still running."""


class NoElicitation(RuntimeError):
    """A write tool has to ask the user, and the client cannot be asked."""


class UserDeclined(Exception):
    """The user declined the question of a write tool."""


class UserCanceled(Exception):
    """The user closed the question of a write tool without an answer."""
