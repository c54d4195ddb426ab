"""The few calls of the Docker Engine API that the launcher needs, asynchronous and over the engine's own socket.

The Docker SDK is synchronous: a thread for each container that is waited for or read from. It is used only for what
`docker login` left on the host (`images.py`). Source: Docker Engine API v1.41, https://docs.docker.com/engine/api/v1.41/
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import ssl
import tarfile
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode

import httpx

#: What these calls are written for. An engine that takes newer ones only is spoken to in its oldest.
_WRITTEN_FOR = (1, 41)
_VERSION = re.compile(r"1\.(\d{1,3})")
_SILENCE_S = 600.0


class EngineError(Exception):
    """The engine refused a call. `status` is the HTTP status; the message is the engine's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class EngineGone(Exception):
    """The engine can't be reached."""


class Engine:
    """One Docker engine.

    Args:
        host: As in DOCKER_HOST, `unix://…` or `tcp://…`; from the environment, else the usual socket.
    """

    def __init__(self, host: str = "") -> None:
        self.host = host or os.environ.get("DOCKER_HOST", "") or "unix:///var/run/docker.sock"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
        self._tls: ssl.SSLContext | None = None
        scheme, _, rest = self.host.partition("://")
        if scheme == "unix":
            transport = httpx.AsyncHTTPTransport(uds=rest, limits=limits)
            base = "http://docker"
        else:
            folder = os.environ.get("DOCKER_CERT_PATH", "")
            if folder:
                self._tls = ssl.create_default_context(cafile=str(Path(folder, "ca.pem")))
                self._tls.load_cert_chain(Path(folder, "cert.pem"), Path(folder, "key.pem"))
            transport = httpx.AsyncHTTPTransport(verify=self._tls or False, limits=limits)
            base = f"{'https' if folder else 'http'}://{rest}"
        # trust_env: a proxy of the environment is not for this socket
        timeout = httpx.Timeout(60.0, connect=5.0)
        self._http = httpx.AsyncClient(transport=transport, base_url=base, timeout=timeout, trust_env=False)
        self._version = ""

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _path(self, path: str) -> str:
        """A path in the version of the API that is spoken; the engine is asked until it has said it."""
        if self._version:
            return f"/{self._version}{path}"
        answer = await self._http.get("/version")
        spoken = _spoken(answer)
        if answer.status_code == 200:
            self._version = spoken
        return f"/{spoken}{path}"

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        timeout_s: float | None = 60.0,
    ) -> Any:
        """One request; the decoded answer. Raises: EngineError, EngineGone."""
        headers = {"Content-Type": "application/x-tar"} if content is not None else None
        timeout = httpx.Timeout(timeout_s, connect=5.0)
        try:
            where = await self._path(path)
            answer = await self._http.request(
                method, where, json=body, params=params, content=content, headers=headers, timeout=timeout
            )
        except httpx.TransportError as error:
            raise EngineGone(f"{self.host}: {error or type(error).__name__}") from error
        if answer.status_code >= 400:
            raise EngineError(answer.status_code, _message_of(answer))
        if not answer.content or "json" not in answer.headers.get("content-type", ""):
            return None
        return answer.json()

    async def stream(
        self, method: str, path: str, *, params: Mapping[str, str], headers: Mapping[str, str]
    ) -> AsyncGenerator[Mapping[str, Any]]:
        """The messages of a call that goes on for long, such as a pull; what is left early, the engine gives up.

        Raises: EngineError; EngineGone, also when it was silent for ten minutes.
        """
        timeout = httpx.Timeout(_SILENCE_S, connect=5.0)
        try:
            where = await self._path(path)
            async with self._http.stream(method, where, params=params, headers=headers, timeout=timeout) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    raise EngineError(answer.status_code, _message_of(answer))
                async for line in answer.aiter_lines():
                    if line.strip():
                        yield json.loads(line)
        except httpx.TransportError as error:
            raise EngineGone(f"{self.host}: {error or type(error).__name__}") from error

    async def read_logs(self, name: str, *, since: str = "", follow: bool = False) -> AsyncGenerator[bytes]:
        """The container's log in chunks of the engine's frames, from its start or from a time (`seconds.nanoseconds`).

        With `follow` until the container's end, where the engine may leave out the last lines: read them again.
        """
        query = urlencode({"stdout": 1, "stderr": 1, "timestamps": 1, "follow": int(follow), "since": since})
        # Not by httpx: the engine sends each line as an HTTP chunk, which costs it 0.1 ms. HTTP/1.0 has no chunks.
        writer: asyncio.StreamWriter | None = None
        try:
            path = await self._path(f"/containers/{name}/logs?{query}")
            request = f"GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n"
            async with asyncio.timeout(5.0):
                reader, writer = await self._connect()
            writer.write(request.encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status = int(head.split(" ", 2)[1])
            if status >= 400:
                raise EngineError(status, (await reader.read()).decode(errors="replace").strip())
            while chunk := await reader.read(1 << 16):
                yield chunk
        except (OSError, TimeoutError, asyncio.IncompleteReadError, httpx.TransportError) as error:
            raise EngineGone(f"{self.host}: {error or type(error).__name__}") from error
        finally:
            if writer is not None:
                writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        scheme, _, rest = self.host.partition("://")
        if scheme == "unix":
            return await asyncio.open_unix_connection(rest)
        address, _, port = rest.rpartition(":")
        return await asyncio.open_connection(address, int(port), ssl=self._tls)

    async def put_files(self, name: str, files: Mapping[str, tuple[int, int, int]]) -> None:
        """Make folders (path ends with `/`) and empty files in a container: path -> mode, uid, gid."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path, (mode, uid, gid) in files.items():
                entry = tarfile.TarInfo(path.strip("/"))
                entry.type = tarfile.DIRTYPE if path.endswith("/") else tarfile.REGTYPE
                entry.mode, entry.uid, entry.gid, entry.mtime = mode, uid, gid, int(time.time())
                archive.addfile(entry)
        await self.call("PUT", f"/containers/{name}/archive", params={"path": "/"}, content=buffer.getvalue())

    async def read_archive(self, name: str, path: str, into: IO[bytes], limit_bytes: int) -> None:
        """Write a tar of a file or folder of a container, running or ended, into a file.

        Raises: EngineError, with status 404 if it has no such path; EngineGone; ValueError if it is over the limit.
        """
        try:
            where = await self._path(f"/containers/{name}/archive")
            async with self._http.stream("GET", where, params={"path": path}) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    raise EngineError(answer.status_code, _message_of(answer))
                async for chunk in answer.aiter_bytes(1 << 20):
                    limit_bytes -= len(chunk)
                    if limit_bytes < 0:
                        raise ValueError(f"{path} of container {name} is larger than its limit")
                    await asyncio.to_thread(into.write, chunk)
        except httpx.TransportError as error:
            raise EngineGone(f"{self.host}: {error or type(error).__name__}") from error

    async def has_file(self, name: str, path: str) -> bool:
        """Whether a container, running or ended, has this file."""
        try:
            await self.call("HEAD", f"/containers/{name}/archive", params={"path": path})
        except EngineError as error:
            if error.status == 404:
                return False
            raise
        return True


def filters(**values: str) -> dict[str, str]:
    """The `filters` parameter of the list calls: one value a key."""
    return {"filters": json.dumps({key: [value] for key, value in values.items()})}


def _spoken(answer: httpx.Response) -> str:
    """The version of the API to speak, by what the engine says of itself; ours, if it says nothing."""
    try:
        oldest, newest = (_version(answer.json()[name]) for name in ("MinAPIVersion", "ApiVersion"))
    except (ValueError, KeyError, TypeError):
        oldest = newest = _WRITTEN_FOR
    major, minor = max(oldest, min(_WRITTEN_FOR, newest))
    return f"v{major}.{minor}"


def _version(text: object) -> tuple[int, int]:
    """ "1.41" as numbers; ours, if it is no version."""
    found = _VERSION.fullmatch(str(text))
    return _WRITTEN_FOR if found is None else (1, int(found[1]))


def _message_of(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text.strip() or answer.reason_phrase
