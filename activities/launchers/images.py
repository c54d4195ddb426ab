"""Pulls a container's image from its registry, with the user's or the host's credentials, and reports the progress.

The registry's address is a user's, and the engine connects to it from its host, as root: so it is held to the rule for
what users name (`determined.common.outgoing`), unless the operator has logged in there.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import json
import re
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from activities.launchers.base import LaunchError
from activities.launchers.engine import Engine, EngineError
from determined.common import outgoing

Say = Callable[[str], None]

_FIRST_WORD_S, _LAST_WORD_S, _LONGER = 5.0, 60.0, 1.5
_MB = 1_000_000
#: As Linux names the emulators of other architectures, by the engine's name of the architecture.
_EMULATORS = {"amd64": "x86_64", "arm64": "aarch64", "386": "i386"}
#: What a processor runs besides its own.
_NATIVE = {("386", "amd64"), ("arm", "arm64")}
_HUB = "docker.io"
#: What names of images are made of: nothing that means something else in the path of a call of the engine.
_NAME = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:/@\[\]-]*")
#: The engine quotes what a registry answered, which may be any server that a user named.
_QUOTED_BODY = re.compile(r'(response body: .*?): ".*"', re.DOTALL)


def no_program(image: str, program: str, why: str) -> str:
    """A sentence about an image in which the first program can't be executed."""
    if "format" in why.lower():
        return f"image {image!r}: its {program} is for another architecture than this host's ({why}): build one for it"
    return (
        f"image {image!r} has no {program} that can be executed ({why}): put Python 3 and the harness into it"
        " (deploy/images/Dockerfile shows how), or name its interpreter in the variable DET_PYTHON_EXECUTABLE"
    )


class Images:
    """The images of one engine.

    Args:
        engine: That has them.
        local: Image names that begin so are built on this host and never pulled.
    """

    def __init__(self, engine: Engine, local: Sequence[str]) -> None:
        self._engine = engine
        self._local = tuple(local)
        self._architecture = ""
        # Sixteen trials that start at once ask the registry once: some count what they are asked.
        self._pulls: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def get(self, image: str, login: Mapping[str, str], *, always: bool, say: Say) -> None:
        """See to it that the image is on this host. Cancel it at any time: the engine keeps the layers it has.

        Args:
            image: As in `docker pull`.
            login: Fields of `environment.registry_auth`; none: what `docker login` left on this host.
            always: Pull although there is one. Does not hold for images that are built here.
            say: Gets a line for the trial's log, before the first byte is pulled and then now and again.

        Raises: LaunchError, EngineGone.
        """
        if not _NAME.fullmatch(image) or ".." in image:
            raise pull_failure(image, "invalid reference format")
        found = await self._found(image)
        if image.startswith(self._local):
            if found is None:
                raise LaunchError(
                    "image_missing",
                    f"image {image!r} is not on this host, and is not pulled, as it is built on the host: build it with"
                    f" `deploy/images/build-local.sh -t {image}`, or set `environment.image`.",
                )
        elif found is None or always:
            await asyncio.to_thread(check_registry, image)
            credentials = await asyncio.to_thread(_credentials, image, login, say)
            key = hashlib.sha256(f"{image}\0{credentials}".encode()).hexdigest()
            lock = self._pulls.setdefault(key, asyncio.Lock())
            if lock.locked():
                say(f"waiting for image {image}, which another trial of this host is pulling")
            async with lock:
                found = None if always else await self._found(image)
                if found is None:
                    await _pull(self._engine, image, credentials, say)
                    found = await self._found(image)
        if found is not None:
            await self._check_architecture(image, found)

    async def _found(self, image: str) -> dict[str, Any] | None:
        try:
            return await self._engine.call("GET", f"/images/{image}/json")
        except EngineError as error:
            if error.status == 404:
                return None
            if error.status == 400:
                raise pull_failure(image, str(error)) from None
            raise LaunchError("start_failed", f"image {image!r}: the engine does not show it: {error}") from None

    async def _check_architecture(self, image: str, found: Mapping[str, Any]) -> None:
        """Said before it runs: what its first program says is "exec format error"."""
        if not self._architecture:
            self._architecture = (await self._engine.call("GET", "/version"))["Arch"]
        wanted: str = found.get("Architecture") or self._architecture
        if not _runs(wanted, self._architecture, self._engine.host):
            raise LaunchError(
                "wrong_architecture",
                f"image {image!r} is for {wanted}, this host is {self._architecture}: build or choose one for"
                f" {self._architecture} (`docker build --platform linux/{self._architecture}`), or use a pool of"
                f" {wanted} hosts.",
            )


@dataclass
class Progress:
    """How far a pull is, from what the engine says of its layers."""

    _layers: dict[str, list[int]] = field(default_factory=dict[str, list[int]])  # bytes: here, in all (0: not known)
    _waiting: set[str] = field(default_factory=set[str])
    is_up_to_date: bool = False  # nothing was to be had

    def take(self, event: Mapping[str, Any]) -> None:
        """One message of the engine's stream."""
        layer, status = str(event.get("id") or ""), str(event.get("status") or "")
        if status.startswith("Status: Image is up to date"):
            self.is_up_to_date = True
        detail: Mapping[str, Any] = event.get("progressDetail") or {}
        if status in ("Pulling fs layer", "Waiting"):
            self._waiting.add(layer)
        elif status == "Downloading":
            self._waiting.discard(layer)
            self._layers[layer] = [int(detail.get("current") or 0), int(detail.get("total") or 0)]
        elif status in ("Verifying Checksum", "Download complete", "Already exists", "Pull complete"):
            self._waiting.discard(layer)
            if layer in self._layers:
                self._layers[layer][0] = self._layers[layer][1] or self._layers[layer][0]

    @property
    def downloaded_bytes(self) -> int:
        """Of the layers that were not here before."""
        return sum(here for here, _ in self._layers.values())

    def __str__(self) -> str:
        here, total = self.downloaded_bytes, sum(size for _, size in self._layers.values())
        if not total:
            return "waiting for the registry"
        if self._waiting:  # nobody knows how large these are
            return f"{here / _MB:.0f} of more than {total / _MB:.0f} MB"
        if here >= total:
            return f"{total / _MB:.0f} MB are here, unpacking them"
        return f"{here * 100 // total} % of {total / _MB:.0f} MB"


async def _pull(engine: Engine, image: str, credentials: str, say: Say) -> None:
    name, tag = _name_and_tag(image)
    say(f"pulling image {image}")
    progress = Progress()
    began = time.monotonic()
    pause = _FIRST_WORD_S
    next_word = began + pause
    params = {"fromImage": name, "tag": tag}
    headers = {"X-Registry-Auth": credentials} if credentials else {}
    try:
        stream = engine.stream("POST", "/images/create", params=params, headers=headers)
        async with contextlib.aclosing(stream) as events:
            async for event in events:
                if "error" in event:
                    detail: Mapping[str, Any] = event.get("errorDetail") or {}
                    raise pull_failure(image, str(detail.get("message") or event["error"]), bool(credentials))
                progress.take(event)
                if time.monotonic() >= next_word:
                    say(f"pulling image {image}: {progress}")
                    pause = min(_LAST_WORD_S, pause * _LONGER)
                    next_word = time.monotonic() + pause
    except EngineError as error:
        raise pull_failure(image, str(error), bool(credentials)) from None
    seconds = time.monotonic() - began
    if progress.is_up_to_date:
        say(f"image {image} is up to date (its registry answered in {seconds:.1f} s)")
    else:
        say(f"pulled image {image} in {seconds:.1f} s ({progress.downloaded_bytes / _MB:.0f} MB)")


def pull_failure(image: str, why: str, has_login: bool = False) -> LaunchError:
    """What the engine's words for a failed pull mean, and what to do.

    The engine passes the registry's words on in one string, so that words are what is looked for.
    Seen with engine 20.10 and 28, registries of the Distribution project and Docker Hub.
    """
    why = _QUOTED_BODY.sub(r"\1", why)
    words = why.lower().replace("permission denied", "")
    registry = registry_of(image)

    def says(*phrases: str) -> bool:
        return any(phrase in words for phrase in phrases)

    if says("no space left"):
        return LaunchError(
            "no_space", f"image {image!r}: no space left for it on the agent's host: {why}; `docker image prune` there."
        )
    if says("no matching manifest", "does not match the specified platform"):
        return LaunchError(
            "wrong_architecture",
            f"image {image!r} is not built for this host's architecture: {why}; push one that is"
            " (`docker buildx build --platform …`), or use a pool of other hosts.",
        )
    if says("unauthorized", "no basic auth credentials", "denied", "forbidden", "authentication required"):
        verb = "correct" if has_login else "set"
        return LaunchError(
            "image_denied",
            f"image {image!r}: {registry} does not give it to us: {why}; {verb} `environment.registry_auth`, or"
            " `docker login` on the agent's host; some registries answer so, too, when there is no such image.",
        )
    if says("invalid reference", "invalid tag"):
        return LaunchError("bad_spec", f"image {image!r}: {why}; correct `environment.image`.")
    if says("manifest unknown", "name unknown", "not found", "does not exist"):
        return LaunchError(
            "image_missing", f"image {image!r} is not in {registry}: {why}; correct `environment.image`, or push it."
        )
    if says("toomanyrequests", "too many requests", "rate limit"):
        return LaunchError(
            "registry_unavailable",
            f"image {image!r}: {registry} refuses to be asked so often: {why}; log in, or use a mirror.",
        )
    return LaunchError(
        "registry_unavailable",
        f"image {image!r}: {registry} can't be reached, or failed: {why}; try `docker pull {image}` there.",
    )


def registry_of(image: str) -> str:
    """The registry of an image as `docker login` names it, `docker.io` if the name has none."""
    first, slash, _ = image.partition("/")
    is_host = "." in first or ":" in first or first == "localhost" or first != first.lower()
    return first if slash and is_host else _HUB


def check_registry(image: str) -> None:
    """Refuse a registry where users may not have the cluster connect to. Blocks: names are looked up.

    One in a private network is accepted if the operator allows the network, or has logged in there on this host. The
    engine by itself follows the answers of a registry that is allowed, such as where its tokens come from.

    Raises: LaunchError("image_denied").
    """
    registry = registry_of(image)
    if registry == _HUB:
        return
    try:
        outgoing.site().check_url(f"https://{registry}/")
    except outgoing.Refused as error:
        if not _own_login(image):
            raise LaunchError(
                "image_denied",
                f"image {image!r}: {error}; use a public registry, or let the operator name its network in"
                " UNDETERRED_ALLOWED_NETWORKS, or `docker login` there on the agent's host.",
            ) from None


def _name_and_tag(image: str) -> tuple[str, str]:
    """What the engine wants: without a tag it would pull all of them."""
    if "@" in image:
        return image, ""
    name, colon, tag = image.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (image, "latest")


def _credentials(image: str, login: Mapping[str, str], say: Say) -> str:
    """The header X-Registry-Auth for an image; empty if there are no credentials. Blocks: helpers are programs."""
    registry = registry_of(image)
    if login:
        fields = dict(login)
        address = _host_of(fields.get("serveraddress") or registry)
        if address != _host_of(registry):
            say(f"environment.registry_auth is for {address}, not for {registry}: {image} is pulled without it")
            return ""
        if auth := fields.pop("auth", ""):
            fields = _user_and_password(auth) | fields
        return _header({**fields, "serveraddress": fields.get("serveraddress") or registry})
    found = _own_login(image)
    if not found:
        return ""
    known = {"username": found.get("username") or found.get("Username"),
             "password": found.get("password") or found.get("Password"),
             "identitytoken": found.get("identitytoken") or found.get("IdentityToken")}  # fmt: skip
    return _header({key: value for key, value in known.items() if value} | {"serveraddress": registry})


def _own_login(image: str) -> dict[str, str]:
    """What `docker login` left on this host for the registry of an image; empty if nothing. Blocks."""
    import docker.auth  # slow to import, and rarely needed

    registry = registry_of(image)

    module: Any = docker.auth
    try:
        return module.load_config().resolve_authconfig(None if registry == _HUB else registry) or {}
    except module.errors.DockerException as error:
        raise LaunchError(
            "image_denied", f"image {image!r}: the agent's `docker login` for {registry} can't be read: {error}"
        ) from None


def _host_of(address: str) -> str:
    """`https://index.docker.io/v1/` and `docker.io` are the same registry."""
    host = address.partition("://")[2] or address
    host = host.partition("/")[0].lower()
    return _HUB if host in ("index.docker.io", "registry-1.docker.io") else host


def _user_and_password(auth: str) -> dict[str, str]:
    try:
        user, colon, password = base64.b64decode(auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = user = password = ""
    if not colon:
        raise LaunchError(
            "bad_spec",
            "environment.registry_auth.auth: expected `user:password` in base64; or give username and password.",
        )
    return {"username": user, "password": password}


def _header(fields: Mapping[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(dict(fields)).encode()).decode()


def _runs(wanted: str, own: str, host: str) -> bool:
    """Whether programs of an architecture run on an engine's host. Of a kernel that is not ours we can't know."""
    if wanted == own or (wanted, own) in _NATIVE or sys.platform != "linux" or not host.startswith("unix:"):
        return True
    emulators = Path("/proc/sys/fs/binfmt_misc")
    return any((emulators / name).exists() for name in (f"qemu-{_EMULATORS.get(wanted, wanted)}", "rosetta"))
