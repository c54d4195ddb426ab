"""Where a process of the API is for its peers."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from api.proxy.peers import own_url
from api.settings import ApiSettings

POSTGRES = "postgresql+psycopg://user:password@records.example.org/name"


def url(**settings: Any) -> str:
    defaults: dict[str, Any] = {"database_url": POSTGRES, "agent_token": "x", "port": 8080}
    return own_url(ApiSettings(**(defaults | settings)), lambda host, port: f"towards-{host}-{port}")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "http://127.0.0.1:8080"),
        ({"host": "10.1.2.3,127.0.0.1"}, "http://10.1.2.3:8080"),
        ({"host": "0.0.0.0"}, "http://towards-records.example.org-5432:8080"),
        ({"host": "::"}, "http://towards-records.example.org-5432:8080"),
        ({"host": "0.0.0.0", "database_url": "sqlite:////x/y.db"}, "http://127.0.0.1:8080"),
        ({"host": "0.0.0.0", "peer_address": "10.1.2.3"}, "http://10.1.2.3:8080"),
        ({"host": "0.0.0.0", "peer_address": "fd00::7"}, "http://[fd00::7]:8080"),
        ({"peer_address": "[fd00::7]:9000"}, "http://[fd00::7]:9000"),
        ({"peer_address": "api-0.example.org:9000"}, "http://api-0.example.org:9000"),
    ],
)
def test_the_address_is_as_set_or_found(settings: dict[str, Any], expected: str) -> None:
    assert url(**settings) == expected


@pytest.mark.parametrize("wrong", ["http://10.1.2.3", "a b", "host:port", "10.1.2.3:8080/x", "x@y", ":8080"])
def test_what_is_no_address_is_refused_by_name(wrong: str) -> None:
    with pytest.raises(ValidationError, match=r"(?s)peer_address.*expected host, host:port or an IP address"):
        url(peer_address=wrong)
