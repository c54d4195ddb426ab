"""Encrypts what goes into Temporal's histories: a reader of its database, or of a backup, finds no user's data there.

Each payload is sealed by AES-256-GCM, after it was compressed (`workflows/codec.py`). Its metadata names the key, so
that keys rotate: the first key of the file encrypts, and all of them decrypt. A payload without encryption is taken as
it is, so that a cluster may begin to encrypt while its searches run.

What Temporal itself sorts and finds by stays readable: ids of workflows, names of activities, task queues, and search
attributes ([ADR 40](../docs/adr/0040-histories-are-encrypted-by-the-cluster.md)).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import PayloadCodec

from workflows.codec import refused

ENCODING = b"binary/encrypted"
_KEY_ID = "undeterred-key"
_KEY_BYTES, _SALT_BYTES, _NONCE_BYTES = 32, 16, 12
_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HIDDEN = "Encoded failure"


class NoSuchKey(Exception):
    """A payload was encrypted with a key that this process does not have. The message names the key."""


class BadKeys(ValueError):
    """A text holds no keys. The message says in which line, and what is expected; it quotes no key."""


@dataclass(frozen=True)
class Keys:
    """Keys by their ids; `current` is the id of the one that encrypts."""

    current: str
    by_id: Mapping[str, bytes]


def parse_keys(text: str) -> Keys:
    """Read keys: one a line, its id, a space, and 32 bytes in base64. The first one encrypts. Raises: BadKeys."""
    found: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not _ID.fullmatch(words[0]):
            raise BadKeys(
                f"line {number}: expected the id of a key (letters, digits, -, _ and .), a space, and the key"
            )
        try:
            key = base64.b64decode(words[1], validate=True)
        except binascii.Error:
            raise BadKeys(f"line {number}: key {words[0]!r}: expected base64") from None
        if len(key) != _KEY_BYTES:
            raise BadKeys(f"line {number}: key {words[0]!r}: {len(key)} bytes: expected {_KEY_BYTES}")
        if words[0] in found:
            raise BadKeys(f"line {number}: key {words[0]!r} is there twice: expected each id once")
        found[words[0]] = key
    if not found:
        raise BadKeys("it holds no key: expected at least one line with an id, a space, and 32 bytes in base64")
    return Keys(next(iter(found)), found)


class Encrypt(PayloadCodec):
    """Encrypts what another codec made of payloads, and hands to that codec what it decrypted.

    Args:
        inner: Comes before encryption, as what is encrypted can't be compressed.
        keys: The keys as they are now; asked for each time, as they rotate while this process runs.
    """

    def __init__(self, inner: PayloadCodec, keys: Callable[[], Keys]) -> None:
        self._inner = inner
        self._keys = keys

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Have the other codec encode them, and encrypt each."""
        keys = self._keys()
        return [seal(payload, keys) for payload in await self._inner.encode(payloads)]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt what is encrypted, and have the other codec decode all.

        Raises: NoSuchKey. The task of a workflow is then tried again until the operator has put the key back.
        """
        keys = self._keys()
        return await self._inner.decode([opened(payload, keys) for payload in payloads])


def seal(payload: Payload, keys: Keys) -> Payload:
    """The payload, encrypted. It grows by 44 bytes and its metadata."""
    salt, nonce, key_id = os.urandom(_SALT_BYTES), os.urandom(_NONCE_BYTES), keys.current.encode()
    sealed = _cipher(keys.by_id[keys.current], salt).encrypt(nonce, payload.SerializeToString(), key_id)
    return Payload(metadata={"encoding": ENCODING, _KEY_ID: key_id}, data=salt + nonce + sealed)


def opened(payload: Payload, keys: Keys) -> Payload:
    """The payload as it was before it was encrypted; one that never was, as it is.

    What was changed on its way becomes a payload of the kind `REFUSED` of `workflows.codec`. Raises: NoSuchKey.
    """
    if payload.metadata.get("encoding") != ENCODING:
        return payload
    key_id = payload.metadata.get(_KEY_ID, b"")
    key = keys.by_id.get(key_id.decode(errors="replace"))
    if key is None:
        raise NoSuchKey(
            f"a payload is encrypted with key {key_id.decode(errors='replace')[:64]!r}, which "
            f"temporal_encryption_keys_file does not hold: it holds {', '.join(keys.by_id)}"
        )
    data = payload.data
    salt, nonce, sealed = data[:_SALT_BYTES], data[_SALT_BYTES:][:_NONCE_BYTES], data[_SALT_BYTES + _NONCE_BYTES :]
    try:
        return Payload.FromString(_cipher(key, salt).decrypt(nonce, sealed, key_id))
    except (InvalidTag, ValueError):  # ValueError: it is too short to hold a nonce
        return refused("it was changed after it was encrypted")


def _cipher(key: bytes, salt: bytes) -> AESGCM:
    # A key of each payload's own: under one key alone, 2^32 random nonces are as many as are safe.
    return AESGCM(hmac.digest(key, salt, "sha256"))


def hide(failure: Failure) -> None:
    """Move messages and stack traces of a failure, and of its causes, to where a codec encrypts them.

    As `DefaultFailureConverter` does with `encode_common_attributes`; every SDK puts them back.
    """
    part = failure
    while True:
        if not part.HasField("encoded_attributes"):
            told = json.dumps({"message": part.message, "stack_trace": part.stack_trace}).encode()
            part.encoded_attributes.CopyFrom(Payload(metadata={"encoding": b"json/plain"}, data=told))
            part.message, part.stack_trace = _HIDDEN, ""
        if not part.HasField("cause"):
            return
        part = part.cause
