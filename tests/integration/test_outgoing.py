"""Processes of the cluster connect where an operator allows, whatever a user's configuration says."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from determined import errors
from determined.common import outgoing, storage
from determined.common.outgoing import Outgoing, Refused
from determined.common.storage.hosted import hosted
from tests.kit.storages import AZURE_ACCOUNT, AZURE_KEY, azure_connection, azure_server, s3_section

UUID = "11111111-1111-4111-8111-111111111111"
KEYS = {"access_key": "a-key", "secret_key": "a-secret"}
INSIDE = [
    "127.0.0.1:{}",
    "localhost:{}",
    "2130706433:{}",
    "[::ffff:127.0.0.1]:{}",
    "0.0.0.0:{}",
    "169.254.169.254",
    "10.0.0.1",
]


@pytest.fixture
def site() -> Iterator[Callable[..., None]]:
    """Sets what the operator allows."""
    before = outgoing.site()
    yield lambda networks="", buckets="": outgoing.configure(Outgoing.of(networks, buckets))
    outgoing.configure(before)


class Seen(http.server.ThreadingHTTPServer):
    """Notes who asks."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.asked: list[str] = []
        self.redirect = ""
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append(self.path)
        self.send_response(307 if server.redirect else 404)
        self.send_header("Location", server.redirect)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Seen]:
    with Seen() as found:
        yield found
        found.shutdown()


def sections(address: str) -> list[dict[str, Any]]:
    url = f"http://{address}"
    return [
        {"type": "s3", "bucket": "bucket", "endpoint_url": url, **KEYS},
        {"type": "azure", "container": "box", "account_url": url, "credential": "sv=2020-01-01&sig=none"},
        {"type": "azure", "container": "box", "connection_string": azure_connection(url)},
        {
            "type": "azure",
            "container": "box",
            "connection_string": f"AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};BlobEndpoint=http://example.com;"
            f"BlobSecondaryEndpoint={url}",
        },
    ]


@pytest.mark.parametrize("address", INSIDE)
def test_storage_is_refused_when_its_address_is_inside(site: Callable[..., None], server: Seen, address: str) -> None:
    site()
    for section in sections(address.format(server.server_port)):
        with pytest.raises(errors.InvalidConfigurationException, match="not on the public internet"):
            hosted(section, [])
    assert server.asked == []


def test_address_is_judged_again_when_it_is_connected_to(
    site: Callable[..., None], server: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that means something public when it is looked at, and this host a moment later."""
    site()
    looked: list[str] = []
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *more: Any, **options: Any) -> Any:
        if not str(host).endswith("rebinding.example"):
            return real(host, port, *more, **options)
        looked.append(host)
        address = "93.184.216.34" if len(looked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for section in sections(f"rebinding.example:{server.server_port}")[:3]:
        looked.clear()
        with pytest.raises(errors.CheckpointException), storage_of(section) as place:
            place.list_files(UUID)
        assert len(looked) > 1, section
    assert server.asked == []


def storage_of(section: dict[str, Any]) -> Any:
    from contextlib import closing

    return closing(storage.build_of_user(section))


def test_redirect_is_not_followed_when_the_first_address_is_allowed(site: Callable[..., None], server: Seen) -> None:
    site("127.0.0.1/32")
    with Seen() as inner:
        server.redirect = f"http://127.0.0.1:{inner.server_port}/secret"
        for section in sections(f"127.0.0.1:{server.server_port}")[:3]:
            with pytest.raises(errors.CheckpointException), storage_of(section) as place:
                place.list_files(UUID)
        assert server.asked
        assert inner.asked == []
        inner.shutdown()


def test_storage_works_when_its_network_is_allowed(site: Callable[..., None], tmp_path: Any) -> None:
    site("127.0.0.0/8")
    (tmp_path / "f").write_bytes(b"x" * 1000)
    with s3_section() as bucket, azure_server() as url:
        from azure.storage.blob import ContainerClient

        account = {"type": "azure", "container": "box", "connection_string": azure_connection(url)}
        with ContainerClient.from_connection_string(account["connection_string"], "box") as client:
            client.create_container()
        for section in (bucket, account):
            with storage_of(section) as place:
                place.commit(UUID, place.put(UUID, str(tmp_path), ["f"]), {})
                assert place.list_files(UUID)["f"] == 1000
                assert b"".join(place.open_file(UUID, "f")) == b"x" * 1000
        site("192.168.0.0/16")
        with pytest.raises(errors.InvalidConfigurationException):
            storage.build_of_user(bucket)


@pytest.mark.parametrize(
    "section",
    [
        {"type": "s3", "bucket": "mine"},
        {"type": "s3", "bucket": "own", "endpoint_url": "https://example.com"},
        {"type": "gcs", "bucket": "mine"},
        {"type": "azure", "container": "box", "account_url": "https://elsewhere.example.com"},
        {"type": "azure", "container": "box", "account_url": "http://own.example.com"},
    ],
)
def test_machines_own_credentials_are_not_for_a_bucket_that_a_user_names(
    site: Callable[..., None], section: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the machine")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the machine")
    site("0.0.0.0/0", "s3://own,gs://own,ms://own.example.com/box")
    with pytest.raises(errors.InvalidConfigurationException, match="names no credentials"):
        storage.build_of_user(section)
    for own in ({"type": "s3", "bucket": "own"}, {"type": "gcs", "bucket": "own"}):
        storage.build_of_user(own)
    storage.build_of_user({"type": "azure", "container": "box", "account_url": "https://own.example.com/"})


@pytest.mark.parametrize(
    ("networks", "address", "expected"),
    [
        ("", "93.184.216.34", True), ("", "10.0.0.1", False), ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "192.168.0.1", False), ("0.0.0.0/0", "10.0.0.1", True), ("0.0.0.0/0", "169.254.169.254", False),
        ("169.254.169.254/32", "169.254.169.254", True), ("10.0.0.0/8", "::ffff:10.0.0.1", True), ("fc00::/7", "fd00::1", True),
        ("::/0", "fe80::1", False), ("127.0.0.0/8", "0.0.0.0", False),
    ],
)  # fmt: skip
def test_network_is_allowed_when_it_is_named(networks: str, address: str, expected: bool) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80))]
    rules = Outgoing.of(networks)
    if expected:
        assert rules.judged("name", found) == [address]
    else:
        with pytest.raises(Refused):
            rules.judged("name", found)


@pytest.mark.parametrize(
    ("networks", "buckets"), [("10.0.0.1/8", ""), ("inside", ""), ("", "bucket"), ("", "s3://a/b")]
)
def test_setting_is_refused_by_its_value_when_it_is_wrong(networks: str, buckets: str) -> None:
    with pytest.raises(ValueError, match=networks or buckets):
        Outgoing.of(networks, buckets)
