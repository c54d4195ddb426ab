"""Passwords and tokens: how they are hashed, and where a request carries its token."""

from __future__ import annotations

import hashlib
import re

import pytest
from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError
from starlette.requests import Request

from api.auth.authentication import client_hash, hash_password, new_token, presented_token, token_hash
from api.errors import Unauthenticated


def request_with(**headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Request({"type": "http", "headers": pairs})


def test_client_hash_is_that_of_every_client_when_a_password_is_given() -> None:
    """Part of the wire contract: hex(SHA-512(salt + password))."""
    assert client_hash("secret") == hashlib.sha512(b"GubPEmmotfiK9TMD6Zdwsecret").hexdigest()
    assert client_hash("pässwörd") == hashlib.sha512("GubPEmmotfiK9TMD6Zdwpässwörd".encode()).hexdigest()


def test_client_hash_is_empty_when_the_password_is() -> None:
    assert client_hash("") == ""


def test_stored_hash_is_the_same_password_when_hashed_by_client_or_server() -> None:
    hasher = PasswordHasher()
    for stored in (hash_password("secret", is_hashed=False), hash_password(client_hash("secret"), is_hashed=True)):
        assert stored.startswith("$argon2id$")
        assert hasher.verify(stored, client_hash("secret"))
        with pytest.raises(VerifyMismatchError):
            hasher.verify(stored, "secret")


def test_stored_hashes_differ_when_passwords_are_equal() -> None:
    assert hash_password("secret", is_hashed=False) != hash_password("secret", is_hashed=False)


def test_whole_password_counts_when_it_is_longer_than_72_bytes() -> None:
    stored = hash_password("x" * 100, is_hashed=False)
    with pytest.raises(VerifyMismatchError):
        PasswordHasher().verify(stored, client_hash("x" * 99))


def test_tokens_are_random_and_their_hashes_do_not_show_them_when_made() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch("[0-9a-f]{64}", token) for token in tokens), "256 bits; a dash in front would be an option"
    token = tokens.pop()
    assert token_hash(token) == hashlib.sha256(token.encode()).hexdigest()


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"authorization": "Bearer abc"}, ("abc", False)),
        ({"authorization": "abc"}, ("abc", False)),
        ({"grpc_metadata_x_user_token": "Bearer abc"}, ("abc", False)),
        ({"grpc_metadata_x_allocation_token": "Bearer abc"}, ("abc", True)),
        ({"cookie": "a=b; auth=abc"}, ("abc", False)),
    ],
)
def test_token_is_found_wherever_clients_put_it_when_there_is_one(
    headers: dict[str, str], expected: tuple[str, bool]
) -> None:
    assert presented_token(request_with(**headers)) == expected


def test_token_is_taken_in_the_order_of_the_contract_when_there_are_several() -> None:
    """Spec rest-api.md §2: user token, Authorization, cookie, allocation header."""
    carried = {
        "grpc_metadata_x_user_token": "1",
        "authorization": "2",
        "cookie": "auth=3",
        "grpc_metadata_x_allocation_token": "4",
    }
    order = []
    while carried:
        order.append(presented_token(request_with(**carried))[0])
        del carried[next(iter(carried))]
    assert order == ["1", "2", "3", "4"]


@pytest.mark.parametrize("headers", [{}, {"authorization": ""}, {"cookie": "auth="}, {"cookie": "other=1"}])
def test_request_is_unauthenticated_when_it_carries_no_token(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated, match="please log in"):
        presented_token(request_with(**headers))
