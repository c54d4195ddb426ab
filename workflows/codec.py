"""Compresses large payloads on their way to Temporal, which refuses those over 2 MB.

Small ones stay as they are, so that Temporal's Web UI shows them; of a search that continues as new after thousands of
trials it shows bytes.

A client that may answer an activity may send compressed bytes, and a MB of them can stand for a GB. So what is larger
than `MAX_BYTES`, or is no compressed payload at all, is never decompressed. It becomes a payload of its own kind, which
`workflows.options.on_agent` turns into that activity's failure. A codec that raised would instead fail the workflow's
task, again and again, and with it everything that the workflow decides.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

_ENCODING = b"binary/zlib"
_MIN_BYTES = 128 * 1024
#: Of the payloads that are brought back together. Temporal takes 2 MB, and a search's state shrinks to a tenth.
MAX_BYTES = 64 * 2**20
#: What stands for a payload that was not brought back; its data is the reason, as UTF-8.
REFUSED = b"undeterred/refused"


class CompressLarge(PayloadCodec):
    """Deflates payloads of 128 KiB and more."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Compress what is large."""
        return [
            payload
            if payload.ByteSize() < _MIN_BYTES
            else Payload(metadata={"encoding": _ENCODING}, data=zlib.compress(payload.SerializeToString(), 1))
            for payload in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Bring back what was compressed, at most `MAX_BYTES` of it. Never raises for what a payload holds."""
        left = MAX_BYTES
        found: list[Payload] = []
        for payload in payloads:
            if payload.metadata.get("encoding") == _ENCODING:
                payload, used = _inflated(payload.data, left)
                left -= used
            found.append(payload)
        return found


def _inflated(data: bytes, most: int) -> tuple[Payload, int]:
    """The payload, and its bytes before it was compressed."""
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(data, most + 1)
        if len(raw) > most:
            return refused(f"it is larger than {MAX_BYTES} bytes once it is decompressed"), 0
        if not inflater.eof:
            return refused("its compressed bytes end early"), 0
        return Payload.FromString(raw), len(raw)
    except (zlib.error, DecodeError) as error:
        return refused(f"it is no compressed payload: {error}"), 0


def refused(reason: str) -> Payload:
    """What stands for a payload that can't be brought back."""
    return Payload(metadata={"encoding": REFUSED}, data=reason.encode())
