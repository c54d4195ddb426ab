"""A registry of container images for tests: the one of the Distribution project, which asks for a login if told to."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import secrets
import socket
import socketserver
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.kit.servers import registry_program, running_server

USER, PASSWORD = "ada", "lovelace"
_HTPASSWD = f"{USER}:$2b$04$CVnbSBHp/SZuy/s.KYWkqOeXZJkwysNNqPY0ErpePksRS5uvk1Oxa\n"
_DOCKER = "application/vnd.docker"


class Registry:
    """A running registry behind a proxy.

    Attributes:
        address: host:port, with which its images' names begin.
        rate_bytes_s: What the proxy lets through to who pulls; None: all that comes.
    """

    def __init__(self, port: int) -> None:
        self.rate_bytes_s: float | None = None
        self._proxy = _Proxy(self, port)
        self.address = f"127.0.0.1:{self._proxy.server_address[1]}"

    @contextlib.contextmanager
    def proxied(self) -> Generator[None]:
        """With its proxy at work."""
        thread = threading.Thread(target=self._proxy.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._proxy.shutdown()
            self._proxy.server_close()
            thread.join()

    def push(self, name: str, files: Mapping[str, bytes], *, architecture: str = "amd64", is_list: bool = False) -> str:
        """Put an image of one layer with these files, all executable, under a name `repository:tag`; its full name.

        Args:
            name: As in `a/b:1`.
            files: Path to content.
            architecture: Which the image says that it is for.
            is_list: Whether the tag names a list of images by architecture, of which there is this one.
        """
        repository, _, tag = name.partition(":")
        layer = _tar(files)
        packed = gzip.compress(layer, 1)
        config = _image_config(layer, architecture)
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_DOCKER}.distribution.manifest.v2+json",
            "config": _descriptor("container.image.v1+json", config),
            "layers": [_descriptor("image.rootfs.diff.tar.gzip", packed)],
        }
        with httpx.Client(base_url=f"http://{self.address}", auth=(USER, PASSWORD), timeout=60) as client:
            for blob in (packed, config):
                self._upload(client, repository, blob)
            body = json.dumps(manifest).encode()
            self._put(client, repository, _digest(body) if is_list else tag, manifest)
            if is_list:
                entry = _descriptor("distribution.manifest.v2+json", body)
                platform = {"platform": {"os": "linux", "architecture": architecture}}
                kind = f"{_DOCKER}.distribution.manifest.list.v2+json"
                listed = {"schemaVersion": 2, "mediaType": kind, "manifests": [entry | platform]}
                self._put(client, repository, tag, listed)
        return f"{self.address}/{name}"

    def _upload(self, client: httpx.Client, repository: str, blob: bytes) -> None:
        begun = client.post(f"/v2/{repository}/blobs/uploads/").raise_for_status()
        place = httpx.URL(begun.headers["Location"]).copy_merge_params({"digest": _digest(blob)})
        client.put(place, content=blob, headers={"Content-Type": "application/octet-stream"}).raise_for_status()

    def _put(self, client: httpx.Client, repository: str, reference: str, manifest: Mapping[str, Any]) -> None:
        headers = {"Content-Type": manifest["mediaType"]}
        path = f"/v2/{repository}/manifests/{reference}"
        client.put(path, content=json.dumps(manifest).encode(), headers=headers).raise_for_status()


@contextlib.contextmanager
def registry(*, asks_for_login: bool = False) -> Generator[Registry]:
    """A registry with nothing in it. With a login, that is `USER` and `PASSWORD`."""
    with tempfile.TemporaryDirectory(prefix="registry-") as name:
        folder = Path(name)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings: dict[str, Any] = {
            "version": 0.1,
            "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
            "http": {"addr": f"127.0.0.1:{port}", "secret": secrets.token_hex(), "relativeurls": True},
            "log": {"level": "warn", "accesslog": {"disabled": True}},
        }
        if asks_for_login:
            (folder / "htpasswd").write_text(_HTPASSWD)
            settings["auth"] = {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}
        (folder / "config.yml").write_text(json.dumps(settings))
        line = [registry_program(), "serve", str(folder / "config.yml")]
        with running_server("registry", line, folder, lambda: _answers(port)):
            found = Registry(port)
            with found.proxied():
                yield found


def docker_login(folder: Path, address: str) -> None:
    """What `docker login` leaves in its folder, which DOCKER_CONFIG names."""
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"auths": {address: {"auth": auth}}}))


def load_image(name: str, files: Mapping[str, bytes], *, architecture: str = "amd64") -> None:
    """Put an image of one layer into the engine under a name, as `docker load` does."""
    layer = _tar(files)
    config = _image_config(layer, architecture)
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    archive = _tar({"config.json": config, "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()})
    subprocess.run(["docker", "load", "--quiet"], input=archive, check=True, stdout=subprocess.DEVNULL)


def noise(size_bytes: int) -> dict[str, bytes]:
    """Files that no compression makes smaller, and that are in no other image."""
    return {"noise": os.urandom(size_bytes)}


def _image_config(layer: bytes, architecture: str) -> bytes:
    root = {"type": "layers", "diff_ids": [_digest(layer)]}
    return json.dumps({"architecture": architecture, "os": "linux", "config": {}, "rootfs": root}).encode()


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _descriptor(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": f"{_DOCKER}.{kind}", "size": len(blob), "digest": _digest(blob)}


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v2/", timeout=5).status_code in (200, 401)
    except httpx.HTTPError:
        return False


class _Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, of: Registry, port: int) -> None:
        self.of, self.port = of, port
        super().__init__(("127.0.0.1", 0), _Connection)


class _Connection(socketserver.BaseRequestHandler):
    server: _Proxy

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.port)) as upstream:
            threading.Thread(target=self._pass_on, args=(self.request, upstream, False), daemon=True).start()
            self._pass_on(upstream, self.request, True)

    def _pass_on(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(16_384):
                target.sendall(data)
                rate = self.server.of.rate_bytes_s
                if is_answer and rate and len(data) > 4096:
                    time.sleep(len(data) / rate)
            target.shutdown(socket.SHUT_WR)
