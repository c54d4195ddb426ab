"""`det up --tls`: what serves, trains, joins and asks by TLS, and what is refused.

The tests share one cluster, which makes its certificate itself, and a second host that joined it.
"""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509

from tests.kit.certificates import Authority
from tests.kit.embedded import Embedded
from tests.kit.scripts import TRAIN
from tests.kit.servers import free_port

CONFIG = """
name: tls
entrypoint: python3 train.py
resources: {{resource_pool: {pool}}}
searcher: {{name: single, metric: accuracy, smaller_is_better: false, max_length: 3}}
max_restarts: 0
"""
Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    folder = tmp_path_factory.mktemp("tls")
    cluster = Embedded(folder, environment={"UNDETERRED_GATEWAY_PORT": str(free_port())})
    cluster.environment["DET_MASTER"] = cluster.environment["DET_MASTER"].replace("http://", "https://")
    cluster.environment.pop("DET_MASTER_CERT_FILE", None)
    try:
        done = cluster.det("up", "--tls", "--host", "0.0.0.0", "--slots", "2", "--tls-name", "det.example.org")
        assert done.returncode == 0, done.stdout + done.stderr
        for line in (f"export DET_MASTER={cluster.environment['DET_MASTER']}", f"authority    {authority(cluster)}"):
            assert line in done.stdout
        yield cluster
    finally:
        cluster.run("down")


def authority(cluster: Embedded) -> Path:
    """The file that clients are given to trust."""
    return cluster.folder / "tls" / "authority.pem"


def stranger(cluster: Embedded, folder: Path, **environment: str) -> dict[str, str]:
    """The environment of another user, who has no file of this one."""
    mine = {"DET_DEBUG_CONFIG_PATH": str(folder / "config"), "DET_USER": "admin", "DET_PASS": "correct horse"}
    return cluster.environment | mine | environment


def ran(environment: dict[str, str], *words: str) -> Done:
    line = [sys.executable, "-m", "cli", *words]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120, check=False)


def ok(done: Done) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait(cluster: Embedded, experiment: int) -> None:
    assert "COMPLETED" in ok(cluster.det("experiment", "wait", str(experiment), "--polling-interval", "0.2"))


def test_a_trial_reports_and_its_checkpoint_comes_back(secure: Embedded, tmp_path: Path) -> None:
    """By the `det` of the user who started it, which trusts the cluster without being asked to."""
    experiment = secure.create(CONFIG.format(pool="default"), TRAIN)
    wait(secure, experiment)
    (checkpoint,) = json.loads(ok(secure.det("experiment", "list-checkpoints", str(experiment), "--json")))
    assert "accuracy" in ok(secure.det("checkpoint", "describe", checkpoint["uuid"]))
    ok(secure.det("experiment", "download", str(experiment), "-o", str(tmp_path)))
    assert json.loads((tmp_path / checkpoint["uuid"] / "state.json").read_text()) == {"steps": 3}


def test_nothing_but_tls_is_served(secure: Embedded) -> None:
    for name in ("UNDETERRED_PORT", "UNDETERRED_PROXY_PORT"):
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://localhost:{secure.environment[name]}/")
    context = ssl.create_default_context(cafile=authority(secure))
    for name in ("UNDETERRED_PORT", "UNDETERRED_PROXY_PORT", "UNDETERRED_GATEWAY_PORT"):
        for host in ("127.0.0.1", "localhost", "det.example.org"):
            with (
                socket.create_connection(("127.0.0.1", int(secure.environment[name]))) as plain,
                context.wrap_socket(plain, server_hostname=host) as shown,
            ):
                assert shown.version() == "TLSv1.3"


def test_a_command_and_a_shell_are_reached_through_the_tunnel(secure: Embedded) -> None:
    assert "by TLS" in ok(secure.det("command", "run", "--config", "resources.slots=0", "echo", "by TLS"))
    started = ok(secure.det("shell", "start", "--detach", "--config", "resources.slots=0"))
    shell = re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", started)[0]
    try:
        assert "hello of det-" in ok(secure.det("shell", "open", shell, "echo", "hello of det-$((1+1))"))
    finally:
        ok(secure.det("shell", "kill", shell))


def test_another_user_needs_the_authority(secure: Embedded, tmp_path: Path) -> None:
    environment = stranger(secure, tmp_path)
    refused = ran(environment, "user", "whoami")
    assert refused.returncode == 1
    assert "is not trusted" in refused.stderr
    assert "DET_MASTER_CERT_FILE" in refused.stderr
    assert "Traceback" not in refused.stderr
    wrong = str(Authority(tmp_path, "stranger").file)
    assert "is not trusted" in ran(environment | {"DET_MASTER_CERT_FILE": wrong}, "user", "whoami").stderr
    for trusted in (str(authority(secure)), "noverify"):
        assert "admin" in ok(ran(environment | {"DET_MASTER_CERT_FILE": trusted}, "user", "whoami"))


def test_a_user_at_a_terminal_is_asked_once(secure: Embedded, tmp_path: Path) -> None:
    """Whether to trust the authority, by the fingerprint that the operator sees as well."""
    environment = stranger(secure, tmp_path)
    printed = ok(secure.det("agent", "join-token", "create")).split()[-1]
    status, shown = _at_a_terminal(environment, "n")
    assert (status, printed in shown) == (1, True), shown
    status, shown = _at_a_terminal(environment, "y")
    assert (status, "'admin'" in shown) == (0, True), shown
    assert "admin" in ok(ran(environment, "user", "whoami")), "it is kept"


def _at_a_terminal(environment: dict[str, str], answer: str) -> tuple[int, str]:
    """The exit code of `det user whoami`, and what was shown until then."""
    master, terminal = pty.openpty()
    line = [sys.executable, "-m", "cli", "user", "whoami"]
    process = subprocess.Popen(line, env=environment, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    os.write(master, f"{answer}\n".encode())  # it waits there until it is read
    shown = b""
    while True:
        try:
            read = os.read(master, 4096)
        except OSError:  # nothing has it open any more
            break
        if not read:
            break
        shown += read
    os.close(master)
    return process.wait(60), shown.decode()


def test_another_host_joins_by_the_fingerprint_and_trains(secure: Embedded, tmp_path: Path) -> None:
    ok(secure.det("resource-pool", "create", "far"))
    printed = ok(secure.det("agent", "join-token", "create", "--pool", "far"))
    words = printed.split()[3:]
    assert words[:3] == ["agent", "run", "--join-token"]
    assert words[4] == "--trust"
    more = ["--name", "far", "--slots", "2", "--slot-type", "cpu", "--folder", str(tmp_path / "far")]
    environment = {key: value for key, value in stranger(secure, tmp_path).items() if not key.endswith("_CA_FILE")}

    other = "sha256:" + "0" * 64
    for trust, expected in (
        ([], "--trust"),
        (["--trust", other], "shows an authority sha256:"),
        (["--trust", "sha256:0"], "expected sha256: and 64 hexadecimal digits"),
    ):
        refused = ran(environment, *words[:4], *trust, *more)
        assert refused.returncode == 1
        assert expected in refused.stderr
        assert "Traceback" not in refused.stderr

    log = tmp_path / "far.log"
    with log.open("w") as output:
        line = [sys.executable, "-m", "cli", *words, *more]
        agent = subprocess.Popen(line, env=environment, stdout=output, stderr=output)
    try:
        secure.until(lambda: "agent is ready" in log.read_text(), 60, "it is ready")
        experiment = secure.create(CONFIG.format(pool="far"), TRAIN)
        wait(secure, experiment)
    finally:
        agent.terminate()
        agent.wait(30)
    assert (tmp_path / "far" / "authority.pem").read_text() == authority(secure).read_text()


def test_a_second_up_renews_what_lacks_a_name_and_restarts_nothing(secure: Embedded) -> None:
    before = {part: secure.pid(part) for part in ("api", "gateway", "agent")}
    served = secure.folder / "tls" / "served.pem"
    trusted = authority(secure).read_text()

    def is_kept() -> bool:
        first = served.read_text()
        ok(secure.run("up"))
        return served.read_text() == first

    # another test's network gives this machine an address now and then, which is a name that it lacks
    assert any(is_kept() for _ in range(3))
    ok(secure.run("up", "--tls", "--tls-name", "other.example.org"))
    assert {part: secure.pid(part) for part in before} == before
    assert authority(secure).read_text() == trusted
    names = x509.load_pem_x509_certificate(served.read_bytes()).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert {"det.example.org", "other.example.org"} <= set(names.value.get_values_for_type(x509.DNSName))
    for path in served.parent.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--no-tls"], "the cluster runs with TLS: `det down` first"),
        (["--tls-name", "a b"], "tls_name: 'a b': expected a host name or an address"),
        (["--tls-cert-file", "/nowhere"], "tls_cert_file and tls_key_file: expected both"),
    ],
)
def test_what_can_not_be_is_said(secure: Embedded, words: list[str], expected: str) -> None:
    done = secure.run("up", *words)
    assert done.returncode == 1
    assert expected in done.stderr


def test_a_certificate_of_ones_own_is_served(tmp_path: Path) -> None:
    """It is for another name than this machine's: the cluster's agent and its containers ask for that name."""
    folder = tmp_path / "certificates"
    folder.mkdir()
    known = Authority(folder)
    certificate, key = known.issue("served", "det.example.org", is_local=False)
    cluster = Embedded(tmp_path)
    port = cluster.environment["UNDETERRED_PORT"]
    options = ["--slots", "1", "--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    try:
        alone = cluster.run("up", *options)
        assert alone.returncode == 1
        assert "this machine does not trust it" in alone.stderr
        assert "--tls-ca-file" in alone.stderr
        cluster.run("down")
        done = cluster.run("up", *options, "--tls-ca-file", str(known.file))
        assert f"export DET_MASTER=https://det.example.org:{port}" in ok(done)
        cluster.environment |= {
            "DET_MASTER": f"https://localhost:{port}",
            "DET_MASTER_CERT_FILE": str(known.file),
            "DET_MASTER_CERT_NAME": "det.example.org",
            "DET_USER": "admin",
            "DET_PASS": "correct horse",
        }
        wait(cluster, cluster.create(CONFIG.format(pool="default"), TRAIN))
        del cluster.environment["DET_MASTER_CERT_NAME"]
        assert "is not trusted" in cluster.det("user", "whoami").stderr
        expired = known.issue("expired", "det.example.org", is_local=False, days=-1)
        cluster.run("down")
        done = cluster.run("up", "--tls-cert-file", str(expired[0]), "--tls-key-file", str(expired[1]))
        assert done.returncode == 1
        assert "it expired at" in done.stderr
    finally:
        cluster.run("down")
