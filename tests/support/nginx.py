"""An nginx of the tests' own: the machine's program, in one process, with everything it writes in a folder."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.harness import reserved_port, running, wait_until

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")

_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@contextmanager
def nginx(folder: Path, site: str) -> Iterator[int]:
    """nginx with one site until the end of the block; its port, for which the site has ``PORT``."""
    with reserved_port() as port, _nginx(folder, site.replace("PORT", str(port)), port):
        yield port


@contextmanager
def _nginx(folder: Path, site: str, port: int) -> Iterator[None]:
    assert NGINX is not None
    folder.mkdir()
    (folder / "site.conf").write_text(site)
    # As in Debian's nginx.conf, as far as one site needs it; one process, so that none outlives another.
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\n"
        "events { worker_connections 8192; }\n"
        f"http {{ access_log off; include {folder}/site.conf;\n"
        + "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in _TEMPORARY)
        + "}\n"
    )
    command = [NGINX, "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with running(command, env={}, cwd=folder) as process:

        def listens() -> bool:
            assert process.popen.poll() is None, process.errors
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_until(listens, "nginx listens")
        yield
        process.signal(signal.SIGQUIT)
        process.wait()
