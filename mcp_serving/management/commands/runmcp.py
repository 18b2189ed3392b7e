"""``manage.py runmcp``: serves the project's MCP server in a process of its own."""

from __future__ import annotations

import os
import select
import signal
import time
import traceback
from argparse import ArgumentParser
from contextlib import nullcontext, suppress
from threading import Timer
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from mcp_serving import checks, conf, errors, garbage, loading
from mcp_serving.management.base import one_line_errors, unapplied_migrations, user_named
from mcp_serving.management.process import exit_at_once, open_closed_descriptors, restart
from mcp_serving.sdk_installation import sdk_problem
from mcp_serving.stdio.streams import StandardStreams, must_be_open
from mcp_serving.transport import Transport

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

    from mcp_serving.server import Server


HINTS_SECONDS = 1.0
"""Seconds after the start when declarations and database are checked, so that the checks do not delay the start."""


class Command(BaseCommand):
    streams: StandardStreams | None = None
    """Standard input and output, if they are claimed already."""
    _transport: Transport
    _owns_process = False
    _server: Server | None = None
    _process_id = 0
    _restarts = False
    _started = 0.0

    requires_system_checks: list[str] = []  # noqa: RUF012 - runmcp itself checks what it needs, in one line
    help = "Serves the project's MCP server over stdio, over HTTP by a Daphne server, or over both."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "address",
            nargs="?",
            metavar="[ADDRESS:]PORT",
            help="for http and both: build a Daphne server there around ASGI_APPLICATION; not with an HTTP_SERVER",
        )
        parser.add_argument(
            "--transport",
            help="stdio, http or both; default: $MCP_TRANSPORT, MCP_SERVING['TRANSPORT'], stdio",
        )
        parser.add_argument(
            "--shutdown-timeout",
            metavar="SECONDS",
            help="for the whole graceful shutdown; default: MCP_SERVING['SHUTDOWN_TIMEOUT'], 10",
        )
        parser.add_argument(
            "--server",
            metavar="PATH",
            help="dotted path to the MCP server, or to a callable returning it; default: MCP_SERVING['SERVER']",
        )
        parser.add_argument(
            "--http-server",
            metavar="PATH",
            help="dotted path to the callable that builds the Daphne server; default: MCP_SERVING['HTTP_SERVER']",
        )
        parser.add_argument(
            "--user",
            metavar="NAME",
            help="the Django user who uses the server over stdio; default: nobody",
        )
        parser.add_argument(
            "--reload",
            action="store_true",
            help="for http: restart when the code changes",
        )

    def run_from_argv(self, argv: list[str]) -> None:
        """Run in a process of its own. When the command ends, the process exits, even if threads still run."""
        self._owns_process = True
        self._process_id = os.getpid()
        self._started = time.time()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, self._on_signal)
        status: Any = 0
        try:
            super().run_from_argv(argv)
        except SystemExit as leaving:
            status = leaving.code
            if isinstance(status, str):  # sys.exit("...") in a module of the project: Python prints the text, too
                self._announce(status)
        except BaseException:
            with suppress(OSError):
                traceback.print_exc()
            status = 1
        if self._restarts:
            restart()
        exit_at_once(status)

    def _on_signal(self, number: int, _: object) -> None:
        """Handle a signal before and after the server runs. While it runs, the server handles signals itself."""
        if os.getpid() != self._process_id:  # a forked child is not the server
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if self._server is None:
            raise SystemExit(128 + number)
        self._server.stop()

    def execute(self, *args: Any, **options: Any) -> str | None:
        # The streams are claimed here, before Django's part of the command can print to standard output.
        with one_line_errors():
            self._transport = _transport(options["transport"])
            self._claim_streams()
        try:
            return super().execute(*args, **options)
        finally:
            if self.streams is not None and not self._owns_process:
                self.streams.release()

    def _claim_streams(self) -> None:
        if self._transport.uses_stdio:
            must_be_open()
        elif self.streams is not None:
            self.streams.release()
            self.streams = None
        if self._owns_process:
            open_closed_descriptors()
        if self._transport.uses_stdio and self.streams is None:
            self.streams = StandardStreams()

    def handle(self, *args: Any, **options: Any) -> None:
        with one_line_errors():
            with garbage.imports_unvisited() if self._owns_process else nullcontext():
                self._server = self._build(options)
            if options["reload"]:
                self._reload_on_changes(options)
            if self._owns_process:
                hints = Timer(HINTS_SECONDS, self._print_hints, [self._server.mcp])
                hints.daemon = True
                hints.start()
            self._server.run(announce=self._announce, streams=self.streams)

    def _reload_on_changes(self, options: dict[str, Any]) -> None:
        if self._transport.uses_stdio:
            raise CommandError("--reload is for --transport http: the client of stdio would lose its connection.")
        if not self._owns_process:
            raise CommandError("--reload restarts the process: start runmcp from a command line.")
        from mcp_serving.management import reload

        configuration = conf.configuration()
        paths = (
            options["server"] or configuration.server,
            options["http_server"] or configuration.http_server,
            getattr(settings, "ASGI_APPLICATION", None),
        )
        reload.when_code_changes(self._restart, [path for path in paths if path is not None], self._started)

    def _restart(self) -> None:
        assert self._server is not None
        self._restarts = True
        self._server.stop()

    def _print_hints(self, mcp: Any) -> None:
        """Print a line for each mistake that does not stop the server."""
        try:
            migrations = unapplied_migrations() if settings.DEBUG else ""
            if migrations:
                self._announce(migrations)
            for message in checks.check_declarations(mcp, () if migrations else tuple(connections)):
                if not message.is_silenced():
                    self._announce(f"Warning: {message.msg} {message.hint} ({message.id})")
        finally:
            connections.close_all()  # of this thread

    def _announce(self, line: str) -> None:
        # None of these may block or end the shutdown: the other end of standard error is gone (OSError), standard
        # error was closed at the start (`2>&-`, AttributeError), or its reader does not read (no room).
        with suppress(OSError, ValueError, AttributeError):
            if _has_room(self.stderr.fileno()):
                self.stderr.write(line, lambda text: text)  # without the style of an error

    def _build(self, options: dict[str, Any]) -> Server:
        if problem := sdk_problem():
            raise CommandError(problem)
        if problems := loading.settings_problems():
            raise CommandError(problems[0])
        configuration = conf.configuration()
        path = _path(options, "server") or configuration.server
        if path is None:
            raise CommandError(
                "No MCP server is named: set MCP_SERVING = {'SERVER': 'project.mcp.server'} or give --server PATH."
            )
        mcp = loading.load_server(path)
        if self._transport.uses_http and not (settings.DEBUG or settings.ALLOWED_HOSTS):
            raise CommandError("With DEBUG off, ALLOWED_HOSTS must have the host names of this server; it is empty.")
        http_server = self._http_server(options)
        from mcp_serving import channel_layer
        from mcp_serving.rate_limits import storage

        if problem := channel_layer.problem() or (storage.problem() if getattr(mcp, "rates", None) else None):
            raise CommandError(problem)
        timeout = options["shutdown_timeout"]
        from mcp_serving.server import Server

        return Server(
            mcp,
            transport=self._transport,
            http_server=http_server,
            shutdown_timeout=configuration.shutdown_timeout if timeout is None else timeout,
            shutdown_delay=configuration.shutdown_delay,
            user=self._user(options["user"]),
        )

    def _http_server(self, options: dict[str, Any]) -> Any:
        """The Daphne server or its builder: at the address, or at a dotted path."""
        address = options["address"]
        option = _path(options, "http_server")
        path = option or conf.configuration().http_server
        if address is None:
            return loading.load(path) if path is not None and self._transport.uses_http else None
        if not self._transport.uses_http:
            raise CommandError(f"The address {address} is for HTTP: give --transport http, too.")
        if path is not None:
            source = "--http-server" if option is not None else "MCP_SERVING['HTTP_SERVER']"
            raise CommandError(f"Both {address} and {source} say where to listen: leave one of them out.")
        from mcp_serving.management import development_server

        return development_server.builder_at(address)

    def _user(self, name: str | None) -> AbstractBaseUser | None:
        if name is None:
            return None
        if not self._transport.uses_stdio:
            raise CommandError(f"--user {name} is for stdio: over HTTP, each request has its own user.")
        return user_named(name)


def _has_room(descriptor: int) -> bool:
    ready = select.poll()
    ready.register(descriptor, select.POLLOUT)
    return bool(ready.poll(0))


def _path(options: dict[str, Any], name: str) -> str | None:
    """The dotted path that an option gives, checked; None without the option."""
    given = options[name]
    if given is None:
        return None
    option = f"--{name.replace('_', '-')}"
    try:
        path = conf.dotted_path(given)
    except ValueError as error:
        raise CommandError(f"{option}: {error}") from error
    if problem := loading.path_problem(path):
        raise CommandError(f"{option}: {problem}")
    return path


def _transport(option: str | None) -> Transport:
    """The transport: from the option, else from the environment, else from the settings."""
    if option is not None:
        return Transport(option)
    if variable := os.environ.get("MCP_TRANSPORT", "").strip():
        try:
            return Transport(variable)
        except errors.InvalidTransport as error:
            raise CommandError(f"MCP_TRANSPORT in the environment: {error}") from error
    return conf.configuration().transport
