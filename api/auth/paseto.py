"""Access tokens of a Determined cluster whose records were imported: PASETO v2.public, signed with that cluster's key.

Such a token is stored nowhere. What it says counts for nothing but the number of its row, and that only if one of the
public keys that came with an import proves that the other cluster signed it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any, cast

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

HEADER = "v2.public."
_SIGNATURE = 64  # bytes
_LONGEST = 4096


def stored_name(source: str, token_id: int) -> str:
    """What stands in `user_tokens.token_hash` for such a token. No SHA-256 looks like it, so no token hashes to it."""
    return f"{source}:{token_id}"


def row_of(token: str, keys: Iterable[tuple[str, str]]) -> str | None:
    """The stored name of the row that a token is of; None if none of the keys signed it.

    Args:
        token: As the client sent it.
        keys: Public keys in hexadecimal digits, each with the id of its cluster.
    """
    if not token.startswith(HEADER) or len(token) > _LONGEST:
        return None
    body, _, footer = token.removeprefix(HEADER).partition(".")
    try:
        payload, end = _decoded(body), _decoded(footer)
    except (ValueError, binascii.Error):
        return None
    message, signature = payload[:-_SIGNATURE], payload[-_SIGNATURE:]
    signed = _joined(HEADER.encode(), message, end)
    for key, source in keys:
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, signed)
            claims: Any = orjson.loads(message)
        except (InvalidSignature, ValueError):
            continue
        number = cast("dict[str, Any]", claims).get("id") if isinstance(claims, dict) else None
        return stored_name(source, number) if isinstance(number, int) and not isinstance(number, bool) else None
    return None


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _joined(*pieces: bytes) -> bytes:
    """PASETO's pre-authentication encoding: lengths as 64-bit integers, so that no two lists of pieces are alike."""
    encoded = len(pieces).to_bytes(8, "little")
    return encoded + b"".join(len(piece).to_bytes(8, "little") + piece for piece in pieces)
