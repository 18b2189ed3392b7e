"""The versions that are supported, each with tests of every part: `nox`, or `make versions`.

nox skips the interpreters that a machine does not have, and says so.
"""

import nox

nox.needs_version = ">=2026.4.10"
nox.options.default_venv_backend = "venv"

LOWEST = {
    "Django": "5.2",
    "asgiref": "3.13.0",
    "channels": "4.2.2",
    "daphne": "4.2.0",
    "mcp": "2.3.0",
    "Twisted": "25.5.0",
}
"""As pyproject.toml allows: a test compares them."""

EACH_ONCE = "each-once"
"""Sessions that have each interpreter and each Django once: what .ci/run has time for."""

PARTS = [
    "tests/notifications/test_notifications_in_process.py",
    "tests/tools/test_confirmation.py",
    "tests/tools/test_mcpserver.py",
    "tests/asgi/test_mount.py",
    "tests/test_sdk_boundary.py",
    "tests/sessions/test_sessions.py",
    "tests/stdio/test_stdio.py",
    "tests/tools/test_threads.py",
    "tests/tokens/test_tokens_admin.py",
    "tests/tools/test_users.py",
]
"""Tests of what a version may break, in less than a minute; the whole suite: `nox -- tests`."""


@nox.session
@nox.parametrize(
    ("python", "django"),
    [
        ("3.11", "5.2"),  # what `make test` runs with, where that is the machine's Python
        ("3.12", "5.2"),
        nox.param("3.12", "6.1", tags=[EACH_ONCE]),
        ("3.13", "5.2"),
        nox.param("3.13", "6.1", tags=[EACH_ONCE]),
    ],
)
def newest(session: nox.Session, django: str) -> None:
    """The newest of everything, with one Django."""
    session.install("--quiet", ".[test]", f"Django=={django}.*")
    _test(session)


@nox.session(python="3.11", tags=[EACH_ONCE])
def lowest(session: nox.Session) -> None:
    """The lowest of everything."""
    session.install("--quiet", ".[test]", *(f"{name}=={version}" for name, version in LOWEST.items()))
    _test(session)


def _test(session: nox.Session) -> None:
    session.run("python", "-c", "import django, mcp, sys; print(sys.version, django.__version__)")
    session.run("python", "-m", "pytest", "-q", *(session.posargs or PARTS))
