"""Addresses of other clusters' databases come from users: what is taken, and what is refused without being repeated."""

from __future__ import annotations

import pytest

from api.errors import BadRequest
from api.services.imports import checked_source


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:hunter2@old.example.org/determined",
        "postgres://me:hunter2@10.0.0.7:5433/determined?sslmode=verify-full",
        "postgresql+psycopg://me@[::1]:5432/determined",
    ],
)
def test_address_of_a_postgresql_is_taken(text: str) -> None:
    url = checked_source(text)
    assert (url.drivername, url.database) == ("postgresql", "determined")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 characters"),
        ("postgresql://me:hunter2@old/" + "x" * 1000, "at most 1000"),
        ("no address", "no address"),
        ("sqlite:///etc/hunter2", "expected a PostgreSQL"),
        ("file:///etc/hunter2", "expected a PostgreSQL"),
        ("http://me:hunter2@old/x", "expected a PostgreSQL"),
        ("postgresql:///hunter2", "names no host"),
        ("postgresql://me:hunter2@old", "names no host, or no database"),
        ("postgresql://me:hunter2@%2Fvar%2Frun/x", "names no host"),
        ("postgresql://me:hunter2@old:70000/x", "port 70000"),
        ("postgresql://me:hunter2@old:port/x", "no address"),
        ("postgresql://me:hunter2@old/x?sslkey=/etc/key", "'sslkey'"),
        ("postgresql://me:hunter2@old/x?passfile=/etc/passwd", "'passfile'"),
        ("postgresql://me:hunter2@old/x?service=other", "'service'"),
        ("postgresql://me:hunter2@old/x?options=-cx", "'options'"),
        ("postgresql://me:hunter2@old/x?host=/tmp", "'host'"),
        ("postgresql://me:hunter2@old/x?sslmode=maybe", "sslmode 'maybe'"),
        ("postgresql://me:hunter2@old/x?sslmode=disable&sslmode=require", "sslmode"),
    ],
)
def test_other_addresses_are_refused_without_their_password(text: str, said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        checked_source(text)
    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)
