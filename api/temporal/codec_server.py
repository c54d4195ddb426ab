"""Payloads of histories as they were before they were encoded, for those who look at them in Temporal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import PayloadCodec

from api.errors import BadRequest, FailedPrecondition
from workflows.encryption import NoSuchKey


async def decoded(codec: PayloadCodec | None, payloads: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each of the payloads, decoded; one that is not encoded, as it is. In JSON, as protobuf writes it.

    Raises: BadRequest; FailedPrecondition, if a key is missing.
    """
    try:
        parsed: Payloads = ParseDict({"payloads": payloads}, Payloads())
    except (ParseError, RecursionError) as error:
        raise BadRequest(f"payloads: {str(error)[:200]}: expected those of Temporal's histories, in JSON") from None
    found: list[Payload] = list(parsed.payloads)
    try:
        found = found if codec is None else await codec.decode(found)
    except NoSuchKey as error:
        raise FailedPrecondition(f"payloads: {error}") from None
    return [MessageToDict(payload) for payload in found]
