"""Compresses large payloads on their way to Temporal, which refuses those over 2 MB.

Small ones stay as they are, so that Temporal's Web UI shows them; of a search that continues as new after thousands of
trials it shows bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

_ENCODING = b"binary/zlib"
_MIN_BYTES = 128 * 1024


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
        """Bring back what was compressed."""
        return [
            Payload.FromString(zlib.decompress(payload.data))
            if payload.metadata.get("encoding") == _ENCODING
            else payload
            for payload in payloads
        ]
