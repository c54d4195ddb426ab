"""A reverse proxy between a published client and the API, which writes down what was asked and answered."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from tests.compat.record import Record

_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "server", "date"}
_NOT_SERVED = (b"there is no /", b"not supported")
_WAIT_S = 120.0  # longer than a long poll


class Proxy:
    """Where it listens, and whose requests it forwards now."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.generation = ""


@contextlib.contextmanager
def recording(record: Record, target_port: int, host: str = "127.0.0.1") -> Generator[Proxy]:
    """Forward to the API on `target_port`. Yields the proxy; set its `generation` before the first request."""
    server = ThreadingHTTPServer((host, 0), _Handler)
    server.daemon_threads = True
    name = "localhost" if host == "127.0.0.1" else "host.docker.internal"
    proxy = Proxy(f"http://{name}:{server.server_address[1]}")
    _Handler.parts[id(server)] = (proxy, record, (host, target_port))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    parts: dict[int, tuple[Proxy, Record, tuple[str, int]]] = {}

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):  # the client is gone, as one that is killed
            super().handle_one_request()
            return
        self.close_connection = True

    def do_GET(self) -> None:
        """Forward any request, whatever its method."""
        proxy, record, address = self.parts[id(self.server)]
        if self.headers.get("Upgrade", "").lower() == "websocket":
            self._splice(address)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
        upstream = http.client.HTTPConnection(*address, timeout=_WAIT_S)
        try:
            upstream.request(self.command, self.path, body or None, headers)
            answer = upstream.getresponse()
            self._forward(answer, proxy, record)
        except (OSError, http.client.HTTPException):
            self.close_connection = True
            raise
        finally:
            upstream.close()

    def _splice(self, address: tuple[str, int]) -> None:
        """Carry a WebSocket both ways until one of them ends; nothing of it is recorded."""
        self.close_connection = True
        with socket.create_connection(address) as upstream:
            lines = [
                f"{self.command} {self.path} HTTP/1.1",
                *(f"{name}: {value}" for name, value in self.headers.items()),
            ]
            upstream.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
            back = threading.Thread(target=_carry, args=(upstream, self.connection), daemon=True)
            back.start()
            with contextlib.suppress(OSError):
                while data := self.rfile.read1(1 << 16):  # type: ignore[attr-defined]
                    upstream.sendall(data)
                upstream.shutdown(socket.SHUT_RDWR)
            back.join()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _forward(self, answer: http.client.HTTPResponse, proxy: Proxy, record: Record) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        is_stream = answer.getheader("Content-Length") is None
        if is_stream:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            start = b""
            while chunk := answer.read1(1 << 16):
                start = start or chunk
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")
        else:
            start = answer.read()
            self.send_header("Content-Length", str(len(start)))
            self.end_headers()
            self.wfile.write(start)
        is_served = answer.status not in (405, 501) and not (
            400 <= answer.status < 500 and any(words in start for words in _NOT_SERVED)
        )
        path = unquote(urlsplit(self.path).path)
        record.answered(proxy.generation, self.command, path, answer.status, is_served=is_served)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the record is the log."""
