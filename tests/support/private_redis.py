"""A Redis of the tests' own: the machine's program on the loopback interface, with nothing on the disk."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from tests.support.harness import must_be_installed, reserved_port, wait_until_answered

LAYERS = {
    "core": "channels_redis.core.RedisChannelLayer",
    "pubsub": "channels_redis.pubsub.RedisPubSubChannelLayer",
}


class Redis:
    """The server, seen from outside the process under test; it may be stopped and started again."""

    def __init__(self, program: str, folder: str, port: int) -> None:
        self.port = port
        self._program = program
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        """A client, which its caller closes."""
        return redis.Redis.from_url(self.url)

    def layers(self, kind: str = "core", **config: Any) -> dict[str, str]:
        """The environment for a project of the tests whose default channel layer this is: ``core``, or ``pubsub``."""
        layer = {
            "BACKEND": LAYERS[kind],
            "CONFIG": {"hosts": [self.url], **config},
        }
        return {"TEST_CHANNEL_LAYERS": json.dumps({"default": layer})}

    def start(self) -> None:
        assert self._process is None
        options = {"port": self.port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": self._folder}
        self._process = subprocess.Popen(
            [self._program, *(part for name, value in options.items() for part in (f"--{name}", str(value)))],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until_answered(self._ping, redis.ConnectionError, self._process, "Redis")

    def stop(self) -> None:
        """End it at once, as a crash does: all that it held is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """For the length of the block, accept connections and answer nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None:
            self.stop()

    def _ping(self) -> None:
        with self.client() as client:
            client.ping()


@contextmanager
def running_redis() -> Iterator[Redis]:
    """A fresh Redis; skips the test only where there is none and it cannot be installed."""
    program = shutil.which("redis-server")
    if program is None:
        must_be_installed("Redis is missing: apt-get install redis-server.")
    with tempfile.TemporaryDirectory(prefix="mcp-serving-redis-") as folder, reserved_port() as port:
        server = Redis(program, folder, port)
        try:
            yield server
        finally:
            server.close()
