"""The versions that are supported, each with the tests that start no process and those of the transports.

`nox`, or `make versions`; the whole suite: `nox -- tests`.
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
    "pydantic": "2.13.0",
    "Twisted": "25.5.0",
}
"""As pyproject.toml allows: a test compares them."""

EACH_ONCE = "each-once"
"""Sessions that have each interpreter and each Django once: what .ci/run has time for."""

IN_PROCESS = ["-m", "not process and not serial and not fuzz"]
WITH_A_PROCESS = ["tests/stdio/test_stdio.py", "tests/asgi/test_mount.py"]
"""What a version of a dependency may break and only a process shows: the transports."""


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
    pytest = ["python", "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal"]
    for tests in [session.posargs] if session.posargs else [IN_PROCESS, WITH_A_PROCESS]:
        session.run(*pytest, *tests)
