"""Object stores for tests: moto for S3, gcp-storage-emulator for GCS, Azurite for Azure; and a proxy that breaks them."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import http.server
import os
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from tests.kit.servers import free_port
from workers.temporal_server import cache_folder

S3_CREDENTIALS = {"aws_access_key_id": "testing-key", "aws_secret_access_key": "testing-secret"}
#: Of every Azurite there is.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_AZURITE = "azurite@3.35.0"

_GCS = """
import sys
from gcp_storage_emulator.server import create_server
create_server("127.0.0.1", int(sys.argv[1]), in_memory=True).run()
"""


@contextlib.contextmanager
def s3_server() -> Generator[str]:
    """An S3. Yields its URL; `S3_CREDENTIALS` are taken, as any others are."""
    port = free_port()
    with _running([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def s3_section() -> Generator[dict[str, Any]]:
    """A `checkpoint_storage` in a bucket of an S3 of its own."""
    import boto3

    with s3_server() as url:
        client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **S3_CREDENTIALS)
        client.create_bucket(Bucket="bucket")
        client.close()
        keys = {"access_key": "testing-key", "secret_key": "testing-secret"}
        yield {"type": "s3", "bucket": "bucket", "prefix": "p", "endpoint_url": url, **keys}


@contextlib.contextmanager
def gcs_server() -> Generator[str]:
    """A GCS. Yields its URL, for `STORAGE_EMULATOR_HOST`."""
    port = free_port()
    with _running([sys.executable, "-c", _GCS, str(port)], port):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def gcs_section() -> Generator[tuple[dict[str, Any], dict[str, str]]]:
    """A `checkpoint_storage` in a bucket of a GCS of its own, and the environment in which it is found."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

    with gcs_server() as url:
        client = Client("test", AnonymousCredentials(), client_options={"api_endpoint": url})
        client.create_bucket("bucket")
        client.close()
        yield {"type": "gcs", "bucket": "bucket", "prefix": "p"}, {"STORAGE_EMULATOR_HOST": url}


@contextlib.contextmanager
def azure_server() -> Generator[str]:
    """An Azure Blob Storage. Yields its URL, which `azure_connection` completes."""
    port = free_port()
    options = ["--blobPort", str(port), "--inMemoryPersistence", "--silent", "--disableTelemetry"]
    with _running([str(azurite()), *options, "--skipApiVersionCheck"], port):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def azure_section() -> Generator[tuple[dict[str, Any], dict[str, str]]]:
    """A `checkpoint_storage` in a container of an Azure of its own, and the environment in which it is found."""
    from azure.storage.blob import ContainerClient

    with azure_server() as url:
        with ContainerClient.from_connection_string(azure_connection(url), "container") as client:
            client.create_container()
        yield {"type": "azure", "container": "container", "connection_string": azure_connection(url)}, {}


def azure_connection(url: str) -> str:
    """The connection string of an `azure_server`."""
    account = f"AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY}"
    return f"DefaultEndpointsProtocol=http;{account};BlobEndpoint={url}/{AZURE_ACCOUNT};"


class Faults(http.server.ThreadingHTTPServer):
    """A proxy before a server. What `fault` returns for a request is answered instead of what the server would.

    Attributes:
        fault: Given method and path; returns status, body and headers, or None to pass the request on. A header
            Content-Length that promises more than the body has makes an answer that breaks off.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, url: str) -> None:
        self.target = url.removeprefix("http://")
        self.fault: Callable[[str, str], tuple[int, bytes, dict[str, str]] | None] = lambda method, path: None
        super().__init__(("127.0.0.1", 0), _Proxied)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def server_bind(self) -> None:
        # HTTPServer would ask the DNS for its own name, which may take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients that went away


@contextlib.contextmanager
def faulty(url: str) -> Generator[Faults]:
    """A running `Faults`."""
    with Faults(url) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


class _Proxied(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Faults

    def _pass_on(self) -> None:
        body = self._body()
        answer = self.server.fault(self.command, self.path)
        if answer is None:
            connection = http.client.HTTPConnection(self.server.target, timeout=60)
            left_out = ("connection", "transfer-encoding", "content-length")
            headers = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            answer = response.status, response.read(), dict(response.getheaders())
            connection.close()
        status, content, headers = answer
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = next((value for name, value in headers.items() if name.lower() == "content-length"), len(content))
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
            self.close_connection = int(length) != len(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = _pass_on

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, format: str, *args: object) -> None:
        pass


def azurite() -> Path:
    """The program of the Azure emulator; installed by npm, once, if it is missing."""
    folder = cache_folder() / "azurite"
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists():
            return program
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeError("these tests need Azurite, and there is no npm to install it with; install Node.js.")
        line = [npm, "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder), _AZURITE]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    return program


@contextlib.contextmanager
def _running(line: list[str], port: int, limit_s: float = 60.0) -> Generator[None]:
    """A server which answers, with any status, before the block begins. Killed when it ends: it keeps nothing."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + limit_s
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    tail = log.read()[-2000:].decode(errors="replace")
                    raise RuntimeError(f"{line[0]} was not ready within {limit_s:g} s ({process.poll()}):\n{tail}")
                time.sleep(0.05)
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
