"""Requests to a cluster's API server: the official client's connection and login, with plain JSON in and out.

The client's models are left aside: a watch of a thousand pods would spend most of its time on making them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

import aiohttp
from kubernetes.aio import config as _config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config.config_exception import ConfigException

from activities.launchers.base import LaunchError

Json = dict[str, Any]

login: Any = _config  # without types

_REQUEST_S = 30.0
#: A watch that says nothing for so long is broken: the server closes it, or sends a bookmark, before that.
WATCH_S = 60
_TRIES = 4
#: The reason of an error: there is an object of this name.
ALREADY = "AlreadyExists"
_MERGE = "application/merge-patch+json"


def part(found: Json, *names: str) -> Json:
    """A mapping within an object, by the names that lead there; empty if it is absent."""
    for name in names:
        found = cast("Json", found.get(name) or {})
    return found


def parts(found: Json, *names: str) -> list[Json]:
    """A list of mappings within an object; empty if it is absent."""
    return cast("list[Json]", part(found, *names[:-1]).get(names[-1]) or [])


class ClusterError(Exception):
    """The API server refused a request. `reason` is its machine word, such as `AlreadyExists` or `Forbidden`."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class ClusterGone(Exception):
    """The API server does not answer, or can't at present: its store, or what stands before it, is overloaded."""


def unavailable(error: ClusterGone) -> LaunchError:
    """What that means for a container."""
    return LaunchError("engine_unavailable", f"the cluster's API server does not answer: {error}")


class NoCluster(Exception):
    """There is no usable kubeconfig, and this is no pod of a cluster. The message says what was looked at."""


class Cluster:
    """One cluster's API server, as one login of it.

    Attributes:
        namespace: Where containers are made whose workspace has none of its own.
    """

    def __init__(self, api: Any, namespace: str) -> None:
        self._api = api
        self.namespace = namespace

    @staticmethod
    async def connect(kubeconfig: str = "", context: str = "", namespace: str = "") -> Cluster:
        """From a kubeconfig, or as the service account of the pod that this runs in.

        Args:
            kubeconfig: A file; empty: the account of this pod.
            context: Of the file; empty: its current one.
            namespace: Empty: that of the context, or of this pod, else `default`.

        Raises: NoCluster.
        """
        settings: Any = Configuration()
        settings.connection_pool_maxsize = 0  # logs are followed by a connection a container
        own = ""
        try:
            if kubeconfig:
                await login.load_kube_config(kubeconfig, context or None, settings)
                _, active = login.list_kube_config_contexts(kubeconfig)
                own = str(active["context"].get("namespace") or "")
            else:
                login.load_incluster_config(settings)
                own = await asyncio.to_thread(_own_namespace)
        except (ConfigException, OSError) as error:
            where = f"kubeconfig {kubeconfig}" if kubeconfig else "no kubeconfig is named, and this is no pod"
            raise NoCluster(f"{where}: {error}") from None
        return Cluster(ApiClient(settings), namespace or own or "default")

    def path(self, group: str, kind: str, namespace: str = "") -> str:
        """The address of objects of a kind, such as `pods`, in a namespace; empty: in the cluster's own one.

        Args:
            group: `v1` or `batch/v1`.
            kind: In the plural.
            namespace: `*`: in all of them.
        """
        root = "/api/v1" if group == "v1" else f"/apis/{group}"
        return f"{root}/{kind}" if namespace == "*" else f"{root}/namespaces/{namespace or self.namespace}/{kind}"

    async def get(self, path: str, **params: str | int) -> Json:
        """Raises: ClusterError, ClusterGone."""
        return await self._call("GET", path, params)

    async def create(self, path: str, body: Mapping[str, Any]) -> Json:
        """Raises: ClusterError (409 if it exists), ClusterGone."""
        return await self._call("POST", path, {}, body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> Json:
        """Raises: ClusterError, ClusterGone."""
        return await self._call("PUT", path, {}, body)

    async def put(self, path: str, body: Mapping[str, Any]) -> None:
        """Create, or put in the place of what is there by this name. Raises: ClusterError, ClusterGone."""
        try:
            await self.create(path, body)
        except ClusterError as error:
            if error.reason != ALREADY:
                raise
            await self.replace(f"{path}/{body['metadata']['name']}", body)

    async def ensure(self, path: str, body: Mapping[str, Any]) -> None:
        """Create, or leave what is there by this name. Raises: ClusterError, ClusterGone."""
        try:
            await self.create(path, body)
        except ClusterError as error:
            if error.reason != ALREADY:
                raise

    async def patch(self, path: str, body: Mapping[str, Any]) -> Json:
        """A merge patch. Raises: ClusterError, ClusterGone."""
        return await self._call("PATCH", path, {}, body, _MERGE)

    async def delete(self, path: str, *, grace_s: int | None = None) -> None:
        """In the background, with what it owns. What is gone is gone. Raises: ClusterError, ClusterGone."""
        body: Json = {"propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        with contextlib.suppress(NotThere):
            await self._call("DELETE", path, {}, body)

    async def watch(self, path: str, params: Mapping[str, str], version: str) -> AsyncGenerator[Json]:
        """Events after a version, until the server ends the stream. Raises: ClusterError (410: old), ClusterGone."""
        wanted = {**params, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        wanted["timeoutSeconds"] = str(WATCH_S)
        async with self._stream(path, wanted, WATCH_S + 15) as content:
            rest = b""
            async for chunk in content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event: Json = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _error_of(event["object"].get("code", 500), event["object"])
                    yield event

    async def log(self, pod: str, container: str, since: str) -> AsyncGenerator[bytes]:
        """A container's output to its end, with a time before each line. Raises: ClusterError, ClusterGone.

        Args:
            pod: Its address.
            container: In it.
            since: A time; empty: from the start.
        """
        params = {"container": container, "timestamps": "true", "follow": "true"}
        if since:
            params["sinceTime"] = since
        async with self._stream(f"{pod}/log", params, None) as content:
            async for chunk in content.iter_any():
                yield chunk

    async def close(self) -> None:
        """Close connections."""
        await self._api.close()

    async def _call(
        self,
        method: str,
        path: str,
        params: Mapping[str, str | int],
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        for number in range(1, _TRIES + 1):
            async with self._answer(method, path, params, body, content_type, _REQUEST_S) as response:
                found = await _body_of(response)
                if response.status < 300:
                    return found
                error = _error_of(response.status, found)
                wait_s = response.headers.get("Retry-After", "1")
            is_overloaded = error.status in (502, 503, 504) or "etcdserver: " in str(error)
            if is_overloaded and number == _TRIES:
                raise ClusterGone(f"{method} {path}: {error}")
            if not is_overloaded and (error.status != 429 or number == _TRIES):
                raise error
            await asyncio.sleep(min(10.0, float(wait_s) if wait_s.isdigit() else 1.0))
        raise AssertionError("unreachable")

    @contextlib.asynccontextmanager
    async def _stream(
        self, path: str, params: Mapping[str, str], silence_s: float | None
    ) -> AsyncGenerator[aiohttp.StreamReader]:
        limits = aiohttp.ClientTimeout(connect=10.0, sock_read=silence_s)
        async with self._answer("GET", path, params, None, "application/json", limits) as response:
            if response.status >= 300:
                raise _error_of(response.status, await _body_of(response))
            yield response.content

    @contextlib.asynccontextmanager
    async def _answer(
        self, method: str, path: str, params: Mapping[str, str | int], body: Any, content_type: str, limit: Any
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        try:
            response = cast(
                "aiohttp.ClientResponse",
                await self._api.call_api(
                    path,
                    method,
                    query_params=list(params.items()),
                    header_params={"Accept": "application/json", "Content-Type": content_type},
                    body=body,
                    auth_settings=["BearerToken"],
                    _preload_content=False,
                    _request_timeout=limit,
                ),
            )
            async with response:
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ClusterGone(f"{method} {path}: {error or type(error).__name__}") from None


class NotThere(ClusterError):
    """There is no such object."""


async def _body_of(response: aiohttp.ClientResponse) -> Json:
    text = await response.read()
    return json.loads(text) if text.startswith(b"{") else {"message": text.decode("utf-8", "replace")}


def _error_of(status: int, found: Json) -> ClusterError:
    message = str(found.get("message") or found.get("reason") or f"status {status}")
    kind = NotThere if status == 404 else ClusterError
    return kind(status, str(found.get("reason") or ""), message)


def _own_namespace() -> str:
    with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace") as file:
        return file.read().strip()
