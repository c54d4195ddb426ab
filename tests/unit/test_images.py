"""What an engine says of a pull, in words and numbers, and what users are told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from activities.launchers.base import ContainerSpec
from activities.launchers.images import Progress, pull_failure, registry_of


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
    ],
)
def test_registry_of_an_image(image: str, registry: str) -> None:
    assert registry_of(image) == registry


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
