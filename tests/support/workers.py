"""Several workers, each a process with a port of its own, on one Redis, and nginx in front that goes round them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.asgi_servers import serving
from tests.support.harness import Process
from tests.support.nginx import nginx
from tests.support.private_redis import Redis

APPLICATION = "tests.project.workers_asgi"


@dataclass(frozen=True)
class Worker:
    process: Process
    address: str


@dataclass(frozen=True)
class Workers:
    """Several workers, and the proxy that leads each request to the next of them."""

    each: list[Worker]
    proxy: str

    @property
    def addresses(self) -> list[str]:
        return [worker.address for worker in self.each]


@contextmanager
def started(
    server: str,
    number: int,
    redis: Redis | None,
    module: str = APPLICATION,
    *,
    layer: str = "core",
    env: dict[str, str] | None = None,
) -> Iterator[list[Worker]]:
    """Several workers of one kind, once they listen; see tests/support/asgi_servers.py."""
    env = {**(redis.layers(layer) if redis else {}), **(env or {})}
    with ExitStack() as stack, ThreadPoolExecutor(number) as pool:
        served = pool.map(lambda _: stack.enter_context(serving(server, module, env=env)), range(number))
        yield [Worker(process, address) for process, address in served]


@contextmanager
def proxied(addresses: list[str], *, balance: str = "", next_upstream: str = "off", keep: int = 0) -> Iterator[str]:
    """nginx in front of these addresses: its own. The header ``Worker`` of an answer says which one it came from.

    Args:
        balance: a line of ``upstream``; without one, each request goes to the next of them.
        next_upstream: when a request is tried at the next; by default never, so that none is ever sent twice.
        keep: how many idle connections it keeps to them.
    """
    servers = "".join(f"server {address.removeprefix('http://')};\n" for address in addresses)
    kept = f"keepalive {keep};\nkeepalive_timeout 1h;\nkeepalive_requests 1000000;\n" if keep else ""
    site = f"""
upstream workers {{
{balance}
{servers}{kept}}}
server {{
    listen 127.0.0.1:PORT backlog=4096;
    keepalive_timeout 1h;
    keepalive_requests 1000000;
    client_max_body_size 16m;
    proxy_http_version 1.1;
    proxy_set_header Host $http_host;
    proxy_set_header Connection "";
    proxy_buffering off;
    proxy_read_timeout 1h;
    proxy_send_timeout 1h;
    proxy_next_upstream {next_upstream};
    add_header Worker $upstream_addr always;
    location / {{ proxy_pass http://workers; }}
}}
"""
    with TemporaryDirectory(prefix="mcp-serving-nginx-") as folder, nginx(Path(folder) / "nginx", site) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def several(
    server: str,
    number: int,
    redis: Redis | None,
    module: str = APPLICATION,
    *,
    layer: str = "core",
    env: dict[str, str] | None = None,
    next_upstream: str = "off",
) -> Iterator[Workers]:
    """So many workers behind a proxy that leads each request to the next of them."""
    with (
        started(server, number, redis, module, layer=layer, env=env) as each,
        proxied([worker.address for worker in each], next_upstream=next_upstream) as proxy,
    ):
        yield Workers(each, proxy)
