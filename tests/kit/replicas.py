"""Several processes of the API behind a load balancer, as an operator runs them: they can be killed and restarted."""

from __future__ import annotations

import contextlib
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path

import httpx

from tests.kit.patience import PATIENCE
from tests.kit.platform import ADMIN_PASSWORD, AGENT_TOKEN
from tests.kit.servers import environment_of_a_part, free_port, haproxy_program, running_server

_CONFIG = """
global
    maxconn 4000
defaults
    mode http
    timeout connect 2s
    timeout client 1h
    timeout server 1h
    timeout tunnel 1h
    timeout check 5s
    option redispatch
    retries 3
    default-server check inter 200ms fall 1 rise 1
frontend api
    bind 127.0.0.1:{port}
    default_backend api
backend api
    balance roundrobin
    option httpchk GET /health/ready
{api}
frontend pages
    bind 127.0.0.1:{pages}
    default_backend pages
backend pages
    balance roundrobin
    option httpchk GET /health/ready
{proxy}
"""


class Replica:
    """One process of the API, which serves TLS if `ca` is the authority of its certificate."""

    def __init__(self, folder: Path, environment: Mapping[str, str], ca: Path | None = None) -> None:
        self.port, self.pages = free_port(), free_port()
        self._scheme = "http" if ca is None else "https"
        self._trusted = True if ca is None else ssl.create_default_context(cafile=ca)
        self._log = folder / f"api-{self.port}.log"
        self._environment = environment_of_a_part(
            {**environment, "UNDETERRED_PORT": str(self.port), "UNDETERRED_PROXY_PORT": str(self.pages)}
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where this one is."""
        return f"{self._scheme}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of its process, which must have been started."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """What it said."""
        return self._log.read_text()

    def start(self) -> None:
        """Start it; it serves when this returns."""
        with self._log.open("a") as log:
            command = [sys.executable, "-m", "workers.api"]
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        deadline = time.monotonic() + 60 * PATIENCE
        with httpx.Client(verify=self._trusted) as client:  # to load the authorities that it trusts takes 30 ms
            while True:
                assert self._process.poll() is None, self.log[-3000:]
                assert time.monotonic() < deadline, self.log[-3000:]
                with contextlib.suppress(httpx.TransportError):
                    if client.get(f"{self.url}/health/ready").status_code == 200:
                        return
                time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL: it says nothing to anyone."""
        self._end(signal.SIGKILL)

    def stop(self) -> float:
        """SIGTERM, and wait for its end; the seconds that took."""
        began = time.monotonic()
        self._end(signal.SIGTERM)
        return time.monotonic() - began

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60 * PATIENCE)
            self._process = None


class Replicas:
    """All of them, and the address of the load balancer."""

    def __init__(self, members: list[Replica], port: int, pages: int) -> None:
        self.members, self.port, self.pages = members, port, pages

    @property
    def url(self) -> str:
        """Where clients reach whichever of them."""
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def replicas(
    folder: Path, database_url: str, temporal_address: str, *, count: int = 2, **more: str
) -> Generator[Replicas]:
    """API processes that run, behind a load balancer. `more`: further settings of them, `UNDETERRED_…`."""
    environment = {
        "UNDETERRED_DATABASE_URL": database_url,
        "UNDETERRED_TEMPORAL_ADDRESS": temporal_address,
        "UNDETERRED_ADMIN_PASSWORD": ADMIN_PASSWORD,
        "UNDETERRED_AGENT_TOKEN": AGENT_TOKEN,
        "UNDETERRED_STORAGE_ROOTS": str(folder),
        **more,
    }
    port, pages = free_port(), free_port()
    environment["UNDETERRED_PROXY_URL"] = f"http://127.0.0.1:{pages}"
    members = [Replica(folder, environment) for _ in range(count)]
    try:
        for member in members:
            member.start()
        servers = [
            "\n".join(
                f"    server api{n} 127.0.0.1:{getattr(member, kind)} port {member.port}"
                for n, member in enumerate(members)
            )
            for kind in ("port", "pages")
        ]
        config = folder / "haproxy.cfg"
        config.write_text(_CONFIG.format(port=port, pages=pages, api=servers[0], proxy=servers[1]))
        balancer = folder / "haproxy"
        balancer.mkdir()

        def answers() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
            return False

        with running_server("haproxy", [haproxy_program(), "-db", "-f", str(config)], balancer, answers):
            yield Replicas(members, port, pages)
    finally:
        for member in members:
            member.kill()
