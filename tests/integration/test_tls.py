"""TLS by an authority of one's own, from `det` to the first metric; certificates that are renewed; a proxy before it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from cryptography import x509

from api.auth.authentication import client_hash
from api.pem import CantUse, ServedCertificate
from api.temporal import gateway as of_temporal
from determined.common.api import Cert
from tests.integration.test_proxy import SERVER
from tests.kit.certificates import Authority
from tests.kit.platform import ADMIN_PASSWORD, AGENT_TOKEN, Platform
from tests.kit.replicas import Replica
from tests.kit.scripts import TRAIN, config
from tests.kit.servers import free_port
from workers import agent, enrolled_agent, gateway
from workers.settings import GatewaySettings


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    folder = tmp_path / "certificates"
    folder.mkdir()
    return Authority(folder)


@pytest.fixture
async def pair(cluster: Platform, authority: Authority, tmp_path: Path) -> AsyncIterator[list[Replica]]:
    """Two processes of the API that serve TLS, each with a certificate of its own."""
    environment = {
        "UNDETERRED_DATABASE_URL": cluster.database.url,
        "UNDETERRED_TEMPORAL_ADDRESS": cluster.temporal.service_client.config.target_host,
        "UNDETERRED_AGENT_TOKEN": AGENT_TOKEN,
        "UNDETERRED_STORAGE_ROOTS": str(tmp_path),
        "UNDETERRED_GATEWAY": f":{cluster.gateway_port}",
        "UNDETERRED_PEER_CA_FILE": str(authority.file),
    }
    members: list[Replica] = []
    try:
        for name in ("one", "other"):
            certificate, key = authority.issue(name, f"{name}.test")
            own = {"UNDETERRED_TLS_CERT_FILE": str(certificate), "UNDETERRED_TLS_KEY_FILE": str(key)}
            members.append(Replica(tmp_path, environment | own, authority.file))
            await asyncio.to_thread(members[-1].start)
        yield members
    finally:
        for member in members:
            member.kill()


@pytest.fixture
async def joined(
    cluster: Platform, pair: list[Replica], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    """An agent of another host: it reaches API and gateway by TLS, and trusts the authority and no other."""
    certificate, key = authority.issue("gateway")
    stop, closed = asyncio.Event(), asyncio.Event()
    settings = GatewaySettings(
        database_url=cluster.database.url,
        temporal_address=cluster.temporal.service_client.config.target_host,
        port=cluster.gateway_port,
        tls_cert_file=str(certificate),
        tls_key_file=str(key),
    )
    serving = asyncio.create_task(gateway.main(settings, closed))
    monkeypatch.setenv("UNDETERRED_API_CA_FILE", str(authority.file))
    monkeypatch.setenv("UNDETERRED_TEMPORAL_CA_FILE", str(authority.file))
    token = (await cluster.post("/api/v1/undeterred/agent-join-tokens", {}))["token"]
    options = argparse.Namespace(
        master=pair[0].url, name="secure", join_token=token, slot_type="cpu", slots=2, label=[], launcher="process",
        address=None, folder=str(cluster.folder / "secure"), memory_mib=None, trial_python=sys.executable, trust=None,
    )  # fmt: skip
    working = asyncio.create_task(agent.main(await asyncio.to_thread(enrolled_agent.settings_of, options), stop))

    async def is_there() -> bool:
        if working.done():
            working.result()
        return (await cluster.get("/api/v1/agents/secure"))["agent"]["enabled"]

    try:
        await cluster.until(is_there, 60, what="the agent is connected")
        yield "secure"
    finally:
        stop.set()
        await working
        closed.set()
        await serving


@pytest.mark.timeout(180)
async def test_all_parts_speak_tls(
    cluster: Platform, pair: list[Replica], joined: str, authority: Authority, tmp_path: Path
) -> None:
    """An agent joins and trains, a container's port is reached through either process, and `det` asks."""
    for each in (await cluster.get("/api/v1/agents"))["agents"]:
        if each["id"] != joined:
            await cluster.post(f"/api/v1/agents/{each['id']}/disable")
    experiment = await cluster.create(config({"max_length": 3}), {"train.py": TRAIN})
    assert (await cluster.finish(experiment))["state"] == "STATE_COMPLETED"
    port, tcp_port = free_port(), free_port()
    command = {"entrypoint": ["python3", "-c", SERVER, str(port), str(tcp_port)],
               "resources": {"slots": 0, "resource_pool": cluster.pool},
               "environment": {"proxy_ports": [{"proxy_port": port}]}}  # fmt: skip
    task_id = (await cluster.post("/api/v1/commands", {"config": command}))["command"]["id"]
    trusted = ssl.create_default_context(cafile=authority.file)
    authorized = {"Authorization": cluster.http.headers["Authorization"]}
    async with httpx.AsyncClient(verify=trusted, headers=authorized, timeout=30) as http:

        async def answers() -> bool:
            found = [await http.get(f"{member.url}/proxy/{task_id}:{port}/echo") for member in pair]
            return [response.status_code for response in found] == [200, 200]

        await cluster.until(answers, 60, what="the port answers through both")
        login = {"username": "admin", "password": client_hash(ADMIN_PASSWORD), "isHashed": True}
        response = await http.post(f"{pair[0].url}/api/v1/auth/login", json=login)
        assert "; Secure" in response.headers["set-cookie"]
        page = await http.get(f"{pair[0].url}/proxy/{task_id}:{port}/echo", headers={"authorization": ""},
                              cookies={"auth": response.json()["token"]})  # fmt: skip
        assert page.headers["location"].startswith(f"https://127.0.0.1:{pair[0].pages}/proxy/{task_id}:{port}/echo")
    await cluster.post(f"/api/v1/commands/{task_id}/kill")
    environment = os.environ | {"DET_MASTER": pair[0].url, "DET_USER": "admin", "DET_PASS": ADMIN_PASSWORD,
                                "DET_DEBUG_CONFIG_PATH": str(tmp_path / "det")}  # fmt: skip
    asked = await _det(environment | {"DET_MASTER_CERT_FILE": str(authority.file)})
    assert (asked.returncode, "admin" in asked.stdout) == (0, True), asked.stderr
    refused = await _det(environment)
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr
    assert "certificate" in refused.stderr


async def _det(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "cli", "user", "whoami"]
    return await asyncio.to_thread(subprocess.run, line, env=environment, capture_output=True, text=True, check=False)


def _shown(port: int, authority: Authority) -> int:
    """The serial number of the certificate that a server shows."""
    context = ssl.create_default_context(cafile=authority.file)
    with (
        socket.create_connection(("127.0.0.1", port)) as connection,
        context.wrap_socket(connection, server_hostname="127.0.0.1") as secure,
    ):
        return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"").serial_number


def _serial(path: Path) -> int:
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


def test_peers_ask_for_a_name_that_a_wildcard_stands_for(authority: Authority) -> None:
    served = ServedCertificate(*map(str, authority.issue("wildcard", "*.example.org")))
    context = Cert(str(authority.file), served.name).context()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(*map(str, served_files(authority, "wildcard")))
    shake_hands(context, server)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(Cert(str(authority.file), "example.org").context(), server)


def served_files(authority: Authority, name: str) -> tuple[Path, Path]:
    folder = authority.file.parent
    return folder / f"{name}.pem", folder / f"{name}-key.pem"


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """A handshake in memory. Raises: ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
            server.wrap_bio(to_server, to_client, server_side=True)]  # fmt: skip
    for _ in range(4):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    assert ends[0].version() == "TLSv1.3"


async def test_a_new_certificate_is_served_without_a_restart(authority: Authority) -> None:
    certificate, key = authority.issue("server")
    served = ServedCertificate(str(certificate), str(key))

    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(nothing, "127.0.0.1", 0, ssl=served.context)
    port = server.sockets[0].getsockname()[1]
    first = await asyncio.to_thread(_shown, port, authority)
    assert first == _serial(certificate)
    assert not served.renew()
    new_certificate, new_key = authority.issue("renewed")
    certificate.write_bytes(new_certificate.read_bytes())
    assert not served.renew(), "half of it is no pair"
    assert await asyncio.to_thread(_shown, port, authority) == first
    key.write_bytes(new_key.read_bytes())
    assert served.renew()
    assert await asyncio.to_thread(_shown, port, authority) == _serial(new_certificate) != first
    certificate.write_text("nonsense")
    assert not served.renew()
    assert await asyncio.to_thread(_shown, port, authority) == _serial(new_certificate)
    server.close()


async def test_a_gateway_shows_a_new_certificate_without_a_restart(authority: Authority) -> None:
    certificate, key = authority.issue("server")
    served = ServedCertificate(str(certificate), str(key))
    port = free_port()
    handler: Any = type("Nothing", (grpc.GenericRpcHandler,), {"service": lambda *_: None})()
    server = await of_temporal.serve(handler, [f"127.0.0.1:{port}"], served)
    shown = await asyncio.to_thread(_shown, port, authority)
    assert shown == _serial(certificate)
    for path, new in zip((certificate, key), authority.issue("renewed"), strict=True):
        path.write_bytes(new.read_bytes())
    assert served.renew()
    assert await asyncio.to_thread(_shown, port, authority) == _serial(certificate) != shown
    await server.stop(0)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (("/nowhere", "{key}"), "tls_cert_file: '/nowhere': expected a file that this process can read"),
        (("{key}", "{key}"), "tls_cert_file: .* expected a file with certificates in PEM"),
        (("{certificate}", "{certificate}"), "tls_key_file: .* expected a file with a private key in PEM"),
        (("{certificate}", "{other}"), "tls_key_file: .* expected the key of the first certificate in .*tls_cert_file"),
    ],
)
def test_a_file_that_can_not_be_served_is_named(authority: Authority, files: tuple[str, str], expected: str) -> None:
    certificate, key = authority.issue("server")
    other = authority.issue("other")[1]
    there = {"certificate": certificate, "key": key, "other": other}
    with pytest.raises(CantUse, match=expected):
        ServedCertificate(*(path.format(**there) for path in files))


@pytest.mark.parametrize(("scheme", "is_secure"), [("https", True), ("http", False), ("", False)])
async def test_behind_a_proxy_that_ends_tls_cookies_and_links_are_for_https(
    cluster: Platform, scheme: str, is_secure: bool
) -> None:
    """uvicorn believes `X-Forwarded-Proto` of addresses in FORWARDED_ALLOW_IPS, which is this host unless set."""
    login = {"username": "admin", "password": client_hash(ADMIN_PASSWORD), "isHashed": True}
    headers = {"x-forwarded-proto": scheme} if scheme else {}
    response = await cluster.http.post("/api/v1/auth/login", json=login, headers=headers)
    assert ("; Secure" in response.headers["set-cookie"]) is is_secure
