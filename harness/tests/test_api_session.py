"""Talking HTTP: connections, failures, retries, streams, logging in."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from determined import errors
from determined.common.api import Cert, Session, _io, _retry, authentication, canonicalize_master_url
from determined.common.api._async._session import AsyncSession
from determined.common.api._retry import OUTAGE_GROWTH, Backoff
from determined.common.api._transport import proxy_for
from determined.common.api._url import api_path, encode_query
from tests.kit.servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Call, Master


@pytest.fixture
def session(master: Master) -> Iterator[Session]:
    session = Session(master.url, token="tok", username="me")
    yield session
    session.close()


def test_a_request_carries_query_body_and_token(master: Master, session: Session) -> None:
    master.answer("POST /api/v1/things/a/b", {"ok": True})
    path = api_path("things", "a/b")
    assert path == "/api/v1/things/a%2Fb"
    assert session.post(path, {"x": 1}, params={"flag": True, "list": [1, 2], "none": None}).json() == {"ok": True}
    call = master.calls[0]
    assert call.query == {"flag": ["true"], "list": ["1", "2"]}
    assert call.body == {"x": 1}
    assert call.headers["Authorization"] == "Bearer tok"
    assert call.headers["Content-Type"] == "application/json"
    assert encode_query({}) == ""


def test_connections_are_kept_alive_and_replaced_when_the_server_closed_them(master: Master, session: Session) -> None:
    master.answer("GET /api/v1/me", {"user": {}})
    for _ in range(5):
        session.get("/api/v1/me")
    assert len(master.connections) == 1
    (sock,) = master.connections
    sock.shutdown(socket.SHUT_RDWR)
    master.wait_for(lambda: not master.connections)
    session.get("/api/v1/me")
    assert len(master.calls) == 6


def test_requests_leave_nothing_in_the_users_log(
    master: Master, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    master.answer("GET /x", {})
    with caplog.at_level("INFO"):
        session.get("/x")
    assert caplog.records == []


def test_requests_leave_nothing_in_a_log_at_debug(master: Master) -> None:
    """Also of what httpx is built on, in a process that has not loaded it before."""
    master.answer("GET /api/v1/me", {"user": {}})
    script = (
        "import logging, sys; logging.basicConfig(level=logging.DEBUG); from determined.common.api import Session;"
        "Session(sys.argv[1], token='tok', username='me').get('/api/v1/me'); logging.debug('mine')"
    )
    done = subprocess.run([sys.executable, "-c", script, master.url], capture_output=True, text=True, check=True)
    assert done.stderr == "DEBUG:root:mine\n"


def test_two_threads_have_two_connections(master: Master, session: Session) -> None:
    barrier = threading.Barrier(2, timeout=10)
    master.answer("GET /wait", lambda call: {"n": barrier.wait()})
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(session.get("/wait").json()["n"])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1]


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (400, {"message": "bad field"}, errors.InvalidRequestException, "bad field"),
        (401, {"error": {"error": "no session"}}, errors.UnauthenticatedException, "no session; log in with"),
        (403, {"error": {"message": "not yours"}}, errors.ForbiddenException, "not yours"),
        (404, {"message": "gone"}, errors.NotFoundException, "gone"),
        (409, b"plain text", errors.ConflictException, "plain text"),
        (418, [], errors.APIException, "HTTP status 418"),
        (500, {"error": "text"}, errors.ServerException, "text"),
        (302, b"", errors.APIException, "HTTP status 302"),
    ],
)
def test_errors_are_told_by_status(
    master: Master, session: Session, status: int, body: Any, kind: type[errors.APIException], message: str
) -> None:
    master.answer("POST /x", (status, body))
    with pytest.raises(errors.APIException, match=message) as caught:
        session.post("/x")
    assert type(caught.value) is kind
    assert caught.value.status == status
    assert len(master.calls) == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_idempotent_requests_are_retried(master: Master, session: Session, status: int) -> None:
    master.answer("GET /x", lambda call: {"n": 3} if len(master.calls) >= 3 else (status, {"message": "later"}))
    assert session.get("/x").json() == {"n": 3}
    assert len(master.calls) == 3


def test_posts_are_retried_with_a_key_only(master: Master, session: Session) -> None:
    master.answer("POST /x", lambda call: {} if len(master.calls) >= 2 else (503, {"message": "later"}))
    with pytest.raises(errors.ServerException, match="later"):
        session.post("/x")
    master.calls.clear()
    session.post("/x", idempotency_key="key")
    assert [c.headers["Idempotency-Key"] for c in master.calls] == ["key", "key"]


def test_answers_that_break_off_are_retried(master: Master, session: Session) -> None:
    broken = [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ]
    master.answer(
        "GET /x", lambda call: master.Raw(broken[len(master.calls) - 1]) if len(master.calls) <= 4 else {"a": 1}
    )
    assert session.get("/x").json() == {"a": 1}
    assert len(master.calls) == 5


def test_other_forms_of_answers_are_understood(master: Master, session: Session) -> None:
    forms = [
        b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}',
        b'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-LENGTH: 8\r\n\r\n{"a": 1}',
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\n{"a\r\n5\r\n": 1}\r\n0\r\nTrailer: 1\r\n\r\n',
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ]
    master.answer("GET /x", lambda call: master.Raw(forms[len(master.calls) - 1]))
    assert [session.get("/x").json() for _ in forms] == [{"a": 1}, {"a": 1}, {"a": 1}, {}]


def test_what_is_no_master_is_said(master: Master, session: Session) -> None:
    master.answer("GET /x", (200, b"<html>"))
    with pytest.raises(
        errors.APIException, match="not JSON but starts with b'<html>'; is this the address of a master"
    ):
        session.get("/x").json()
    master.answer("POST /y", lambda call: master.Raw(b"SSH-2.0-OpenSSH\r\n\r\n"))
    with pytest.raises(errors.MasterNotFoundException, match="this is not HTTP: illegal status line.*SSH-2.0"):
        session.post("/y")
    master.answer("POST /y", lambda call: master.Raw(b"SSH-2.0-OpenSSH\r\n"))
    with pytest.raises(errors.MasterNotFoundException, match="disconnected without sending a response; check"):
        session.post("/y")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nno header\r\n\r\n", "illegal header line b'no header'"),
        (b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n", "illegal header line"),
        (b"HTTP/2 200\r\n\r\n", "illegal status line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", "illegal content-length b'1, 2'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "illegal content-length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n{}", "illegal transfer-encoding"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n", "illegal end of a chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "illegal chunk header"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", "a line is too long"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 30_000 + b"\r\n", "the head is too long"),
    ],
)
def test_what_no_http_server_says_is_refused(master: Master, session: Session, answer: bytes, said: str) -> None:
    master.answer("POST /x", lambda call: master.Raw(answer))
    with pytest.raises(errors.MasterNotFoundException, match=f"this is not HTTP: {said}"):
        session.post("/x")


def test_headers_may_be_folded_or_come_twice(master: Master, session: Session) -> None:
    head = b"HTTP/1.1 429 Later\r\nX-Long: a\r\n  b\r\nX-Two: 1\r\nx-two: 2\r\nRETRY-AFTER:7\r\n"
    head += b"Connection: close\r\nContent-Length: 2\r\n\r\n{}"  # as it is: else the next request may meet its end
    master.answer("POST /x", lambda call: master.Raw(head))
    with pytest.raises(errors.APIException) as caught:
        session.post("/x")
    assert (caught.value.status, caught.value.retry_after_s) == (429, 7)
    master.answer("POST /x", lambda call: master.Raw(head.replace(b"429 Later", b"200 OK")))
    headers = session.post("/x").headers
    assert (headers["X-LONG"], headers.get("X-Two"), headers.get("x-none")) == ("a b", "1, 2", None)


def test_paths_are_sent_as_urls_have_them(master: Master) -> None:
    session = Session(f"{master.url}/prefix")
    master.answer("GET /prefix/a b/é", {"a": 1})  # that is how it decodes them
    assert session.get("/a b/é").json() == {"a": 1}
    session.close()


def test_a_master_that_is_not_there_is_named() -> None:
    port = free_port()
    session = Session(f"127.0.0.1:{port}", max_tries=2)
    with pytest.raises(errors.MasterNotFoundException, match=f"127.0.0.1:{port}: connection refused; check") as caught:
        session.get("/x")
    assert isinstance(caught.value, ConnectionError)


def test_a_silent_master_times_out(master: Master, session: Session) -> None:
    gate = threading.Event()
    master.answer("GET /x", lambda call: {"n": gate.wait(5)})
    with pytest.raises(errors.MasterNotFoundException, match="timed out"):
        session.get("/x", timeout_s=0.1, max_tries=1)
    gate.set()


def test_line_breaks_cannot_enter_the_head(session: Session) -> None:
    with pytest.raises(ValueError, match="line break"):
        session.get("/x", headers={"A": "b\r\nC: d"})


def test_closing_a_session_ends_a_request_in_another_thread(master: Master, session: Session) -> None:
    gate = threading.Event()
    master.answer("GET /x", lambda call: {"n": gate.wait(60)})
    failures: list[BaseException] = []

    def get() -> None:
        try:
            session.get("/x", max_tries=1)
        except errors.MasterNotFoundException as e:
            failures.append(e)

    thread = threading.Thread(target=get)
    thread.start()
    master.wait_for(lambda: master.calls)
    began = time.monotonic()
    session.close()
    thread.join(20)
    gate.set()
    assert failures
    assert time.monotonic() - began < 20
    with pytest.raises(errors.MasterNotFoundException, match="session is closed"):
        session.get("/x", max_tries=1)


def test_a_socket_is_closed_by_who_waits_on_it(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number is free once it is closed: who was about to wait on it would wait on another connection for ever."""
    gate = threading.Event()
    master.answer("GET /x", lambda call: {"n": gate.wait(60)})
    session = Session(master.url, max_tries=1)
    failures: list[errors.MasterNotFoundException] = []

    def get() -> None:
        try:
            session.get("/x")
        except errors.MasterNotFoundException as e:
            failures.append(e)

    thread = threading.Thread(target=get)
    thread.start()
    master.wait_for(lambda: master.calls)
    shut_down = _io._shut_down
    late: list[socket.socket] = []
    monkeypatch.setattr(_io, "_shut_down", late.append)
    session.close()
    (sock,) = late
    assert sock.fileno() >= 0, "closed while another thread waits on it"
    shut_down(sock)
    thread.join(20)
    gate.set()
    assert failures
    assert sock.fileno() == -1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_does_not_use_its_parents_connection(master: Master, session: Session) -> None:
    master.answer("GET /x", lambda call: {"n": len(master.calls)})
    session.get("/x")
    pid = os.fork()
    if pid == 0:
        os._exit(0 if session.get("/x").json()["n"] == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert session.get("/x").json()["n"] == 3


def test_a_stream_yields_messages_as_they_arrive(master: Master, session: Session) -> None:
    gate = threading.Event()

    def lines() -> Iterator[bytes]:
        yield b'{"result": {"n": 1}}\n{"resul'
        gate.wait(10)
        yield b't": {"n": 2}}\n\n{"result": {"n": 3}}'

    master.answer("GET /s", lambda call: lines())
    stream = session.stream("/s")
    assert next(stream) == {"n": 1}
    gate.set()
    assert list(stream) == [{"n": 2}, {"n": 3}]


def test_an_error_in_a_stream_is_raised(master: Master, session: Session) -> None:
    line = json.dumps({"error": {"grpcCode": 5, "httpCode": 404, "message": "trial is gone"}}).encode()
    master.answer("GET /s", lambda call: iter([b'{"result": {"n": 1}}\n', line + b"\n"]))
    stream = session.stream("/s")
    assert next(stream) == {"n": 1}
    with pytest.raises(errors.NotFoundException, match="trial is gone"):
        next(stream)


def test_a_proxy_is_used_unless_excepted(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", master.url)
    monkeypatch.setenv("no_proxy", "localhost,.internal,10.0.0.1:99")
    master.answer("GET /api/v1/me", {"user": 1})
    session = Session("http://example.invalid:8080")
    assert session.get("/api/v1/me").json() == {"user": 1}
    assert master.calls[0].headers["Host"] == "example.invalid:8080"
    session.close()
    proxy = proxy_for
    assert proxy("http", "a.internal", 80) is None
    assert proxy("http", "localhost", 80) is None
    assert proxy("http", "10.0.0.1", 99) is None
    assert proxy("http", "10.0.0.1", 98) == master.url
    assert proxy("https", "example.invalid", 443) is None
    monkeypatch.setenv("http_proxy", "socks5://me:secret@example.invalid:1080")
    with pytest.raises(
        errors.InvalidConfigurationException, match="a socks5 proxy, but only http:// and https://"
    ) as e:
        Session("http://example.invalid:8080").get("/x")
    assert "secret" not in str(e.value)


@pytest.fixture
def tls_master(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """A TLS server with a certificate of its own for "master.test"; (port, certificate)."""
    import http.server
    import ssl

    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2"),
            *("-subj", "/CN=master.test", "-addext", "subjectAltName=DNS:master.test"),
        ],
        check=True,
        capture_output=True,
    )

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"ok": 1}')

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # clients that do not trust us

        def server_bind(self) -> None:
            http.server.socketserver.TCPServer.server_bind(self)  # type: ignore[attr-defined]

    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server.server_address[1], str(cert)
    server.shutdown()
    server.server_close()


def test_certificates_that_a_user_trusts_are_of_one_master(
    tls_master: tuple[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the published clients keep them, whatever else the file has in it."""
    from determined.common.api import Cert
    from determined.common.api._certs import CertStore

    port, cert = tls_master
    monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(tmp_path))
    monkeypatch.setenv("DET_MASTER_CERT_NAME", "master.test")
    monkeypatch.delenv("DET_MASTER_CERT_FILE", raising=False)
    store, url = CertStore(), f"https://127.0.0.1:{port}"
    store.set("https://other:8080", Path(cert).read_text())
    with pytest.raises(errors.MasterNotFoundException, match="is not trusted.*DET_MASTER_CERT_FILE"):
        Session(url, cert=Cert.of(url), max_tries=1).get("/x")
    store.set(url, Path(cert).read_text())
    assert Session(url, cert=Cert.of(url)).get("/x").json() == {"ok": 1}
    assert set(json.loads(Path(store.path).read_text())) == {"https://other:8080", url}
    Path(store.path).write_text('{"a": 1}')
    with pytest.raises(errors.CorruptCertificateCacheException, match=r"certs\.json can't be read.*remove it"):
        Cert.of(url)
    assert Cert.of(f"http://127.0.0.1:{port}").cert_path is None, "nothing is read where nothing is checked"


def test_the_masters_certificate_is_checked(tls_master: tuple[int, str], tmp_path: Path) -> None:
    port, cert = tls_master
    url = f"https://127.0.0.1:{port}"

    def get(how: Cert) -> Any:
        session = Session(url, cert=how, max_tries=1)
        try:
            return session.get("/x").json()
        finally:
            session.close()

    assert get(Cert(cert, "master.test")) == {"ok": 1}
    assert get(Cert(noverify=True)) == {"ok": 1}
    assert get(Cert("noverify")) == {"ok": 1}
    for how in (Cert(), Cert(cert), Cert(cert, "other.test")):
        with pytest.raises(errors.MasterNotFoundException, match="certificate verify failed"):
            get(how)
    with pytest.raises(errors.InvalidConfigurationException, match="can't be read"):
        get(Cert(str(tmp_path / "none.pem")))


@pytest.fixture
def connect_proxy() -> Iterator[tuple[str, list[str]]]:
    """A proxy for TLS; (address, what it was asked to connect to). Every name is this machine to it."""
    asked: list[str] = []

    def pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while piece := source.recv(65536):
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def serve(near: socket.socket) -> None:
        with near:
            request = near.recv(65536).decode()
            asked.append(request.split()[1])
            with socket.create_connection(("127.0.0.1", int(asked[-1].rpartition(":")[2]))) as far:
                near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                thread = threading.Thread(target=pump, args=(far, near), daemon=True)
                thread.start()
                pump(near, far)
                thread.join()

    def accept() -> None:
        while True:
            try:
                near = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=serve, args=(near,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked


def test_certificates_are_checked_behind_a_proxy_too(
    tls_master: tuple[int, str], connect_proxy: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, cert = tls_master
    monkeypatch.setenv("https_proxy", connect_proxy[0])
    session = Session(f"https://master.invalid:{port}", cert=Cert(cert, "master.test"), max_tries=1)
    assert session.get("/x").json() == {"ok": 1}
    session.close()
    assert connect_proxy[1] == [f"master.invalid:{port}"]
    session = Session(f"https://master.invalid:{port}", cert=Cert(cert), max_tries=1)
    with pytest.raises(errors.MasterNotFoundException, match="certificate verify failed"):
        session.get("/x")
    session.close()


async def test_certificates_are_checked_asynchronously_too(tls_master: tuple[int, str]) -> None:
    port, cert = tls_master
    session = AsyncSession(f"https://127.0.0.1:{port}", cert=Cert(cert, "master.test"), max_tries=1)
    assert (await session.get("/x")).json() == {"ok": 1}
    await session.close()
    session = AsyncSession(f"https://127.0.0.1:{port}", cert=Cert(cert, "other.test"), max_tries=1)
    with pytest.raises(errors.MasterNotFoundException, match="certificate verify failed"):
        await session.get("/x")
    await session.close()


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("host", "http://host:8080"),
        ("host:9", "http://host:9"),
        ("http://host/", "http://host:80"),
        ("https://host", "https://host:443"),
        ("HTTPS://Host:1/det/", "https://host:1/det"),
        ("http://me:secret@host?x=1#y", "http://host:80"),
        ("[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_masters_have_one_spelling(text: str, url: str) -> None:
    assert canonicalize_master_url(text) == url


@pytest.mark.parametrize("text", ["", "ftp://x", "http://", "host:port"])
def test_a_wrong_address_is_explained(text: str) -> None:
    with pytest.raises(errors.InvalidConfigurationException, match="the master's address"):
        canonicalize_master_url(text)


def test_waiting_times_grow_with_jitter_up_to_the_cap() -> None:
    backoff = Backoff(0.1, 10)
    delays = [backoff.next() for _ in range(12)]
    for i, delay in enumerate(delays):
        top = min(10, 0.1 * 2**i)
        assert top / 2 <= delay <= top
    assert Backoff(0.1, 10).next(at_least_s=3) == 3
    assert Backoff(0.1, 10).next(at_least_s=300) == 10


def test_next_try_is_within_a_tenth_of_the_outage_when_a_reporter_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_retry, "jitter", lambda: 1.0)  # its most
    backoff, outage_s = Backoff(growth=OUTAGE_GROWTH), 0.0
    while outage_s < 60:
        delay_s = backoff.next()
        assert delay_s <= 0.11 + outage_s / 10
        outage_s += delay_s
    for _ in range(1000):
        assert backoff.next() <= 10


# -- logging in


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DET_MASTER", "DET_MASTER_ADDR", "DET_USER", "DET_PASS", "DET_USER_TOKEN", "DET_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("DET_ALLOCATION_ID", "DET_DEBUG_CONFIG_PATH", "DET_MASTER_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


def _with_users(master: Master, users: dict[str, str]) -> None:
    hashed = {name: authentication.hash_password(password) for name, password in users.items()}

    def login(call: Call) -> Any:
        name = call.body["username"]
        if not call.body["isHashed"] or hashed.get(name) != call.body["password"]:
            return 401, {"message": "invalid credentials"}
        return {"token": f"token-of-{name}", "user": {"username": name}}

    def me(call: Call) -> Any:
        name = (call.headers["Authorization"] or "").removeprefix("Bearer token-of-")
        return {"user": {"username": name, "id": 1}} if name in users else (401, {"message": "no session"})

    master.answer("POST /api/v1/auth/login", login)
    master.answer("GET /api/v1/me", me)


def test_the_password_is_hashed_as_the_wire_wants_it() -> None:
    import hashlib

    assert authentication.hash_password("") == ""
    assert authentication.hash_password("x") == hashlib.sha512(b"GubPEmmotfiK9TMD6Zdwx").hexdigest()


def test_a_login_is_cached_for_its_user_only(master: Master, home: Path) -> None:
    _with_users(master, {"ann": "pw", "determined": ""})
    session = authentication.login(master.url, "ann", "pw")
    assert (session.username, session.token) == ("ann", "token-of-ann")
    path = home / "determined" / "auth.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {
        "version": 2,
        "masters": {master.url: {"active_user": "ann", "tokens": {"ann": "token-of-ann"}}},
    }
    logins = len(master.of("POST /api/v1/auth/login"))
    assert authentication.login(master.url).username == "ann"
    assert authentication.login(master.url, "ann").username == "ann"
    assert len(master.of("POST /api/v1/auth/login")) == logins
    master.answer("POST /api/v1/auth/logout", {})
    authentication.logout(session)
    logins = len(master.of("POST /api/v1/auth/login"))
    with pytest.raises(errors.UnauthenticatedException, match="^nobody is logged in at http.*det user login") as told:
        authentication.login(master.url)
    assert "'determined'" not in str(told.value), "a user whom nobody typed"
    assert len(master.of("POST /api/v1/auth/login")) == logins, "or it counts as a wrong password of that user"


def test_an_ended_session_is_replaced_or_explained(master: Master, home: Path) -> None:
    _with_users(master, {"determined": ""})
    store = authentication.TokenStore()
    store.set(master.url, "determined", "old")
    assert authentication.login(master.url).token == "token-of-determined"
    store.set(master.url, "ann", "old")
    with pytest.raises(errors.UnauthenticatedException, match="can't log in at .* as 'ann': invalid credentials"):
        authentication.login(master.url)
    assert authentication.login(master.url, "determined").username == "determined"


def test_the_environment_logs_in(master: Master, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_users(master, {"ann": "pw", "bob": "", "determined": ""})
    monkeypatch.setenv("DET_MASTER_ADDR", master.url)
    monkeypatch.setenv("DET_SESSION_TOKEN", "alloc")
    monkeypatch.setenv("DET_ALLOCATION_ID", "a.1")
    master.answer("GET /y", {})
    authentication.login().get("/y")
    assert master.calls[-1].headers["Grpc-Metadata-x-allocation-token"] == "Bearer alloc"
    monkeypatch.setenv("DET_USER_TOKEN", "token-of-bob")
    assert authentication.login().username == "bob"
    monkeypatch.setenv("DET_USER", "ann")
    monkeypatch.setenv("DET_PASS", "pw")
    assert authentication.login().username == "ann"


def test_a_damaged_cache_costs_a_login_only(master: Master, home: Path) -> None:
    _with_users(master, {"determined": ""})
    path = home / "determined" / "auth.json"
    path.parent.mkdir(parents=True)
    for text in ("", "{", "[]", '{"version": 1}', '{"version": 2, "masters": {"x": 1}}'):
        path.write_text(text)
        assert authentication.login(master.url, "determined").username == "determined"
    assert json.loads(path.read_text())["masters"][master.url]["active_user"] == "determined"


def test_many_processes_may_write_the_cache_at_once(home: Path) -> None:
    script = """
import sys
from determined.common.api.authentication import TokenStore
for i in range(10):
    TokenStore().set("http://m:1", f"user-{sys.argv[1]}-{i}", "t")
"""
    processes = [subprocess.Popen([sys.executable, "-c", script, str(n)]) for n in range(4)]
    assert [p.wait(60) for p in processes] == [0, 0, 0, 0]
    assert len(authentication.TokenStore().users("http://m:1")) == 40
    assert sorted(os.listdir(home / "determined")) == ["auth.json", "auth.json.lock"]
