"""A Temporal of four services on PostgreSQL, with mutual TLS, built from its Go module: what a production runs, small."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, TLSConfig

from tests.deploy.programs import compile_go
from tests.kit.certificates import Authority
from tests.kit.servers import free_port
from workers.temporal_server import cache_folder

#: The server's version that the dev server of `workers.temporal_server` has in it.
VERSION = "v1.29.1"
_MODULES = ("go.temporal.io/server/cmd/server", "go.temporal.io/server/cmd/tools/sql")
SERVICES = ("frontend", "history", "matching", "worker")
_SHARDS = 16
_NAME = "temporal.test"
_DYNAMIC = {
    "history.transferProcessorMaxPollRPS": 2000,
    "history.timerProcessorMaxPollRPS": 2000,
    "matching.useNewMatcher": True,
    "system.enableActivityEagerExecution": True,
}


def programs() -> Path:
    """The folder with the programs `server` and `sql`, built once: ten minutes on two cores that others use as well."""
    folder = cache_folder() / f"temporal-server-{VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            partial = Path(f"{folder}.building")
            modules = [f"{module}@{VERSION}" for module in _MODULES]
            compile_go("install", *modules, GOBIN=str(partial), GOFLAGS="-mod=mod")
            partial.rename(folder)
    return folder


@dataclass
class TemporalCluster:
    """A running one. `settings`: how our processes reach it."""

    folder: Path
    settings: dict[str, Any]
    services: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])

    @property
    def names(self) -> tuple[str, ...]:
        """Of all services."""
        return SERVICES

    def start(self, name: str) -> None:
        """Start one of `SERVICES`."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.services[name] = subprocess.Popen(
                [programs() / "server", "--root", self.folder, "--config", ".", "--env", "test", "--allow-no-auth",
                 "start", "--service", name],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        """SIGKILL to a service."""
        self.services[name].send_signal(signal.SIGKILL)
        self.services[name].wait()


@contextlib.asynccontextmanager
async def temporal_cluster(folder: Path, postgres: str, namespace: str) -> AsyncIterator[TemporalCluster]:
    """Four services, each a process; all are killed with the block.

    Args:
        folder: Must exist; gets certificates, configuration and logs.
        postgres: URL of a superuser of a PostgreSQL server; two databases are made there.
        namespace: Is registered.
    """
    authority = Authority(folder)
    server, client = authority.issue("server", _NAME), authority.issue("client")
    ports = {name: (free_port(), free_port()) for name in SERVICES}
    _make_databases(postgres)
    config = _config(postgres, ports, authority.file, server)
    (folder / "test.yaml").write_text(yaml.safe_dump(config))
    (folder / "dynamic.yaml").write_text(yaml.safe_dump({key: [{"value": it}] for key, it in _DYNAMIC.items()}))
    settings = {
        "temporal_address": f"127.0.0.1:{ports['frontend'][0]}",
        "temporal_namespace": namespace,
        "temporal_ca_file": str(authority.file),
        "temporal_cert_file": str(client[0]),
        "temporal_key_file": str(client[1]),
        "temporal_server_name": _NAME,
    }
    running = TemporalCluster(folder, settings)
    try:
        running.start(SERVICES[0])
        await _has_records(postgres)  # two services that write the first records at once fail each other
        for name in SERVICES[1:]:
            running.start(name)
        await _register(running, namespace)
        yield running
    finally:
        for name in running.services:
            running.kill(name)


async def _has_records(postgres: str) -> None:
    """Wait until the first service has written down what its cluster is called."""
    engine = create_engine(make_url(postgres).set(database="temporal"))
    async with asyncio.timeout(120):
        while True:
            with engine.connect() as connection:
                if connection.scalar(text("SELECT count(*) FROM cluster_metadata_info")):
                    break
            await asyncio.sleep(0.1)
    engine.dispose()


async def _register(cluster: TemporalCluster, namespace: str) -> None:
    """Register the namespace, as soon as the services know each other."""
    wanted = cluster.settings
    tls = TLSConfig(
        server_root_ca_cert=Path(wanted["temporal_ca_file"]).read_bytes(),
        client_cert=Path(wanted["temporal_cert_file"]).read_bytes(),
        client_private_key=Path(wanted["temporal_key_file"]).read_bytes(),
        domain=_NAME,
    )
    request = RegisterNamespaceRequest(namespace=namespace)
    request.workflow_execution_retention_period.FromTimedelta(timedelta(days=3))
    async with asyncio.timeout(180):
        while True:
            for name, process in cluster.services.items():
                log = cluster.folder / f"{name}.log"
                assert process.poll() is None, f"{name} ended: {log.read_text()[-3000:]}"
            try:
                client = await Client.connect(wanted["temporal_address"], tls=tls)
                await client.workflow_service.register_namespace(request)
                return
            except (RuntimeError, RPCError):
                await asyncio.sleep(0.5)


def _make_databases(postgres: str) -> None:
    url = make_url(postgres)
    for database, schema in (("temporal", "temporal"), ("temporal_visibility", "visibility")):
        line = [programs() / "sql", "--plugin", "postgres12", "--ep", url.host or "", "--port", str(url.port),
                "--user", url.username or "", "--password", str(url.password), "--db", database]  # fmt: skip
        for words in (
            ["create-database"],
            ["setup-schema", "-v", "0.0"],
            ["update-schema", "--schema-name", f"postgresql/v12/{schema}"],
        ):
            done = subprocess.run([*line, *words], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"


def _config(postgres: str, ports: dict[str, tuple[int, int]], ca: Path, server: tuple[Path, Path]) -> dict[str, Any]:
    url = make_url(postgres)
    own = {"certFile": str(server[0]), "keyFile": str(server[1])}
    to_server = {"serverName": _NAME, "rootCaFiles": [str(ca)]}
    mutual = {"server": own | {"clientCaFiles": [str(ca)], "requireClientAuth": True}, "client": to_server}

    def store(database: str) -> dict[str, Any]:
        return {"sql": {"pluginName": "postgres12", "databaseName": database, "connectAddr": f"{url.host}:{url.port}",
                        "connectProtocol": "tcp", "user": url.username, "password": str(url.password),
                        "maxConns": 15, "maxIdleConns": 15, "maxConnLifetime": "1h"}}  # fmt: skip

    return {
        "log": {"stdout": True, "level": "warn"},
        "persistence": {
            "defaultStore": "default",
            "visibilityStore": "visibility",
            "numHistoryShards": _SHARDS,
            "datastores": {"default": store("temporal"), "visibility": store("temporal_visibility")},
        },
        "global": {
            "membership": {"maxJoinDuration": "30s", "broadcastAddress": "127.0.0.1"},
            "tls": {"frontend": mutual, "internode": mutual, "systemWorker": own | {"client": to_server}},
        },
        "services": {
            name: {"rpc": {"grpcPort": grpc, "membershipPort": membership, "bindOnLocalHost": True}}
            for name, (grpc, membership) in ports.items()
        },
        "clusterMetadata": {
            "enableGlobalNamespace": False,
            "failoverVersionIncrement": 10,
            "masterClusterName": "active",
            "currentClusterName": "active",
            "clusterInformation": {"active": {"enabled": True, "initialFailoverVersion": 1, "rpcName": "frontend",
                                              "rpcAddress": f"127.0.0.1:{ports['frontend'][0]}"}},
        },
        "publicClient": {"hostPort": f"127.0.0.1:{ports['frontend'][0]}"},
        "dcRedirectionPolicy": {"policy": "noop"},
        "dynamicConfigClient": {"filepath": "dynamic.yaml", "pollInterval": "10s"},
    }  # fmt: skip
