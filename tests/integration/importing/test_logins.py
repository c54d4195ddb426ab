"""Who had an account on the old cluster logs in here: by the old password, and by old access tokens."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select

from api.auth.authentication import Authenticator, UserPrincipal
from api.errors import Unauthenticated
from database.models import User
from database.session import Database
from tests.kit.old_cluster import Old, imported
from tests.kit.records import seeded


def authenticator(database: Database) -> Authenticator:
    return Authenticator(database, agent_token="", session_days=7)


def signed(old: Old, claims: dict[str, object], *, footer: bytes = b"null") -> str:
    """A token as the old master signs them: PASETO v2.public."""
    seed = bytes(old.value("SELECT private_key FROM auth_token_keypair"))[:32]
    header, message = b"v2.public.", json.dumps(claims).encode()
    pieces = b"".join(len(each).to_bytes(8, "little") + each for each in (header, message, footer))
    signature = Ed25519PrivateKey.from_private_bytes(seed).sign((3).to_bytes(8, "little") + pieces)
    body = base64.urlsafe_b64encode(message + signature).rstrip(b"=")
    return (header + body + b"." + base64.urlsafe_b64encode(footer).rstrip(b"=")).decode()


async def test_the_old_password_opens_the_account_and_is_stored_as_here_from_then_on(came: Database) -> None:
    auth = authenticator(came)
    with pytest.raises(Unauthenticated):
        await auth.login("admin", "Peer-Pass-2", is_hashed=False)
    await auth.login("admin", "Peer-Pass-1", is_hashed=False)
    with came.read() as session:
        assert session.scalars(select(User.password_hash).where(User.username == "admin")).one().startswith("$argon2")
    await auth.login("admin", "Peer-Pass-1", is_hashed=False)


def test_an_old_access_token_is_valid_as_long_as_its_row_says_so(database_url: str, old: Old) -> None:
    old.run(
        "INSERT INTO user_sessions (id, user_id, expiry, created_at, token_type, revoked_at) VALUES"
        " (9001, 2, '2099-01-01', now(), 'ACCESS_TOKEN', NULL), (9002, 2, '2099-01-01', now(), 'ACCESS_TOKEN', now()),"
        " (9003, 2, '2020-01-01', now(), 'ACCESS_TOKEN', NULL)"
    )
    with seeded(database_url) as database:
        imported(database, old.url)
        auth = authenticator(database)
        caller = auth.identify(signed(old, {"id": 9001, "user_id": 1}), is_allocation=False)
        assert isinstance(caller, UserPrincipal)
        assert (caller.username, caller.is_admin) == ("determined", False)  # as its row says, not the token
        forged = signed(old, {"id": 9001})
        source = old.value("SELECT cluster_id FROM cluster_id")
        for token in (
            signed(old, {"id": 9002}),
            signed(old, {"id": 9003}),
            signed(old, {"id": 1}),
            signed(old, {"id": "9001"}),
            forged[:-8] + "AAAA" + forged[-4:],
            forged.partition(".bnVsbA")[0],
            f"{source}:9001",
            "v2.public.",
            "v2.public.%%%",
        ):
            with pytest.raises(Unauthenticated):
                auth.identify(token, is_allocation=False)
