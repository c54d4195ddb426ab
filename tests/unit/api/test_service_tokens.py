"""Tokens that open the services of one task."""

from __future__ import annotations

import time

import pytest

from api.auth.service_tokens import ServiceToken, ServiceTokens
from api.errors import Unauthenticated

TOKENS = ServiceTokens("secret")
TOKEN = ServiceToken("0b9e1b1c-7a0e-4a53-9d53-0d35b8f4f0f1", 7, 12)


def test_a_token_says_what_it_was_issued_for() -> None:
    assert TOKENS.read(TOKENS.issue(TOKEN)) == TOKEN


@pytest.mark.parametrize("changed", [("s1", "s2"), (".7.", ".1."), (".12.", ".13."), ("0b9e", "0b9f")])
def test_a_token_that_was_changed_is_refused(changed: tuple[str, str]) -> None:
    text = TOKENS.issue(TOKEN)
    assert changed[0] in text
    with pytest.raises(Unauthenticated):
        TOKENS.read(text.replace(changed[0], changed[1], 1))


@pytest.mark.parametrize("text", ["", ".", "s1", "s1.a.b.c.d.e", "é" * 50, "\udc80.x", "s1....."])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(Unauthenticated):
        TOKENS.read(text)


def test_another_clusters_token_is_refused() -> None:
    with pytest.raises(Unauthenticated):
        TOKENS.read(ServiceTokens("other").issue(TOKEN))


def test_a_token_that_expired_is_refused() -> None:
    now = int(time.time())
    assert TOKENS.read(TOKENS.issue(ServiceToken("t", 1, 1, now + 60))).expires_at == now + 60
    with pytest.raises(Unauthenticated, match="expired"):
        TOKENS.read(TOKENS.issue(ServiceToken("t", 1, 1, now - 1)))
