"""What an engine says of a pull, in words and numbers, and what users are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.launchers.base import ContainerSpec, LaunchError
from activities.launchers.engine import Engine
from activities.launchers.images import Images, Progress, check_registry, pull_failure, registry_of
from determined.common import outgoing
from determined.common.outgoing import Outgoing
from tests.kit.registries import docker_login


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("manifest for r.io/x/y:nope not found: manifest unknown: manifest unknown", "image_missing"),
        ("repository r.io/x/y not found: name unknown: repository name not known to registry", "image_missing"),
        ("unauthorized: authentication required", "image_denied"),
        ('Head "http://r.io/v2/x/y/manifests/1": no basic auth credentials', "image_denied"),
        (
            "pull access denied for x/y, repository does not exist or may require 'docker login': denied: requested"
            " access to the resource is denied",
            "image_denied",
        ),
        ("error parsing HTTP 403 response body: 403 Forbidden", "image_denied"),
        ('Get "http://r.io/v2/": dial tcp 127.0.0.1:1: connect: connection refused', "registry_unavailable"),
        ('Get "https://r.io/v2/": dial tcp: lookup r.io on 10.0.0.1:53: no such host', "registry_unavailable"),
        ("net/http: TLS handshake timeout", "registry_unavailable"),
        ("x509: certificate signed by unknown authority", "registry_unavailable"),
        ("http: server gave HTTP response to HTTPS client", "registry_unavailable"),
        ("toomanyrequests: You have reached your pull rate limit.", "registry_unavailable"),
        ("received unexpected HTTP status: 503 Service Unavailable", "registry_unavailable"),
        ("mkdir /var/lib/docker/tmp/x: permission denied", "registry_unavailable"),
        ("no matching manifest for linux/amd64 in the manifest list entries", "wrong_architecture"),
        ("write /var/lib/docker/tmp/GetImageBlob1: no space left on device", "no_space"),
        ("invalid reference format: repository name must be lowercase", "bad_spec"),
    ],
)
def test_failed_pulls_are_told_apart(why: str, reason: str) -> None:
    error = pull_failure("r.io/x/y:1", why)
    assert error.reason == reason
    assert why in str(error), "the engine's own words are not kept from anybody"
    assert "r.io/x/y:1" in str(error)


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("python", "docker.io"),
        ("user/python:3", "docker.io"),
        ("localhost/python", "localhost"),
        ("r.example.org/a/b@sha256:0", "r.example.org"),
        ("10.0.0.1:5000/a:1", "10.0.0.1:5000"),
        ("LOCALHOST/a", "LOCALHOST"),
        ("[::1]:5000/a", "[::1]:5000"),
    ],
)
def test_registry_of_an_image(image: str, registry: str) -> None:
    assert registry_of(image) == registry


@pytest.fixture
def allow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Sets the networks that the operator allows. Nobody has logged in anywhere."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    before = outgoing.site()
    outgoing.configure(Outgoing())
    yield lambda networks: outgoing.configure(Outgoing.of(networks))
    outgoing.configure(before)


INSIDE = [
    "127.0.0.1:8080/api/v1/x:1", "localhost/x", "LOCALHOST/x", "localhost:5000/x@sha256:0", "[::1]:80/x", "10.0.0.7/x",
    "169.254.169.254/latest:1", "192.168.1.1:443/x", "0.0.0.0:80/x", "2130706433:80/x", "[::ffff:127.0.0.1]:80/x",
]  # fmt: skip


@pytest.mark.parametrize("image", INSIDE)
async def test_registry_that_users_may_not_have_us_connect_to_is_never_asked(
    allow: Callable[[str], None], image: str
) -> None:
    asked: list[str] = []

    async def engine_without_images(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b" HTTP")[0].decode())
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(engine_without_images, "127.0.0.1", 0)
    engine = Engine(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        with pytest.raises(LaunchError, match="UNDETERRED_ALLOWED_NETWORKS") as caught:
            await Images(engine, ()).get(image, {"username": "a", "password": "b"}, always=False, say=lambda _: None)
    finally:
        await engine.close()
        server.close()
    assert caught.value.reason == "image_denied"
    assert asked[0] == "GET /version"
    assert len(asked) == 2
    assert asked[1].startswith("GET /v1.41/images/"), "whether this host has it, and nothing else"


@pytest.mark.parametrize(
    ("says", "spoken"),
    [
        ({"ApiVersion": "1.41", "MinAPIVersion": "1.12"}, "v1.41"),
        ({"ApiVersion": "1.52", "MinAPIVersion": "1.44"}, "v1.44"),
        ({"ApiVersion": "1.40", "MinAPIVersion": "1.12"}, "v1.40"),
        ({"ApiVersion": "1.40"}, "v1.41"),
        ({"ApiVersion": "../x", "MinAPIVersion": "9"}, "v1.41"),
        ([], "v1.41"),
    ],
)
async def test_engine_is_spoken_to_in_a_version_that_it_takes(says: Any, spoken: str) -> None:
    """Docker 29 takes nothing before 1.44; the engine of these tests, 20.10, knows nothing after 1.41."""
    asked: list[str] = []

    async def engine_of_a_version(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode())
        body = json.dumps(says).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
        writer.write(head.encode() + b"\r\n\r\n" + body)
        writer.close()

    server = await asyncio.start_server(engine_of_a_version, "127.0.0.1", 0)
    engine = Engine(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        await engine.call("GET", "/info")
        await engine.call("GET", "/info")
    finally:
        await engine.close()
        server.close()
    assert asked == ["/version", f"/{spoken}/info", f"/{spoken}/info"]


@pytest.mark.parametrize("image", ["../containers/abc", "a/../../info", "a?x=1", "a#b", "a b", "", "a%2e", "a\nb"])
async def test_name_of_an_image_is_no_path_of_the_engine(image: str) -> None:
    nobody = Engine("tcp://127.0.0.1:1")
    with pytest.raises(LaunchError, match="invalid reference format") as caught:
        await Images(nobody, ()).get(image, {}, always=True, say=lambda _: None)
    assert caught.value.reason == "bad_spec"
    await nobody.close()


def test_registry_is_the_operators_when_he_allows_its_network_or_has_logged_in(
    allow: Callable[[str], None], tmp_path: Path
) -> None:
    for image in ("python:3", "team/python", "8.8.8.8/x", "registry.invalid/x"):  # what has no address, none can reach
        check_registry(image)
    with pytest.raises(LaunchError):
        check_registry("127.0.0.1:5000/x")
    docker_login(tmp_path / "docker", "127.0.0.1:5000")
    check_registry("127.0.0.1:5000/x")
    with pytest.raises(LaunchError):
        check_registry("127.0.0.1:5001/x")
    allow("127.0.0.0/8")
    check_registry("127.0.0.1:5001/x")


def test_what_some_server_answered_is_not_shown() -> None:
    why = "error parsing HTTP 404 response body: invalid character '<' looking for beginning of value: "
    told = str(pull_failure("r.io/x:1", why + '"<html>a key: \\"s3cret\\"\n</html>"'))
    assert "invalid character '<'" in told
    assert "s3cret" not in told


def taken(*events: tuple[str, str] | tuple[str, str, int, int]) -> Progress:
    progress = Progress()
    for layer, status, *numbers in events:
        detail: dict[str, Any] = dict(zip(("current", "total"), numbers, strict=False))
        progress.take({"status": status, "id": layer, "progressDetail": detail})
    return progress


def test_progress_is_a_share_of_what_is_to_be_had() -> None:
    assert str(taken(("1", "Pulling from x/y"))) == "waiting for the registry"
    begun = [("a", "Pulling fs layer"), ("b", "Pulling fs layer"), ("c", "Already exists")]
    one = [*begun, ("a", "Downloading", 25_000_000, 100_000_000)]
    assert str(taken(*one)) == "25 of more than 100 MB", "nobody knows how large b is"
    both = [*one, ("b", "Downloading", 25_000_000, 100_000_000)]
    assert str(taken(*both)) == "25 % of 200 MB"
    here = [*both, ("a", "Verifying Checksum"), ("b", "Download complete")]
    assert str(taken(*here)) == "200 MB are here, unpacking them"
    assert str(taken(*here, ("a", "Extracting", 5, 100), ("a", "Pull complete"))) == "200 MB are here, unpacking them"
    assert taken(*here).downloaded_bytes == 200_000_000


def test_login_is_in_no_text_of_a_specification() -> None:
    spec = ContainerSpec("c", ["true"], {}, registry_login={"username": "ada", "password": json.dumps("lovelace")})
    assert "lovelace" not in f"{spec} {spec!r}"
