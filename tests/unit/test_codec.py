"""Large payloads are compressed on the way to Temporal, and come back as they were."""

import tracemalloc
import zlib

import pytest
from temporalio.api.common.v1 import Payload

from workflows import codec
from workflows.codec import REFUSED, CompressLarge


async def test_large_payload_is_smaller_on_the_wire_and_the_same_again() -> None:
    small = Payload(metadata={"encoding": b"json/plain"}, data=b'{"a": 1}')
    large = Payload(metadata={"encoding": b"json/plain"}, data=b'["1234"]' * 100_000)
    codec = CompressLarge()
    sent = await codec.encode([small, large])
    assert sent[0] == small, "Temporal's Web UI can show it"
    assert len(sent[1].data) < len(large.data) / 10
    assert await codec.decode(sent) == [small, large]


async def test_payload_is_not_brought_back_when_it_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_BYTES", 2**20)
    small = Payload(metadata={"encoding": b"json/plain"}, data=b"a" * (300 << 10))
    bomb = Payload(metadata={"encoding": b"binary/zlib"}, data=zlib.compress(bytes(256 << 20)))
    torn = Payload(metadata={"encoding": b"binary/zlib"}, data=bomb.data[:100])
    wrong = Payload(metadata={"encoding": b"binary/zlib"}, data=zlib.compress(b"no payload"))
    [sent] = await CompressLarge().encode([small])
    tracemalloc.start()
    found = await CompressLarge().decode([bomb, torn, wrong, sent, sent, sent, sent])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [payload.metadata["encoding"] == REFUSED for payload in found] == [
        True,
        True,
        True,
        False,
        False,
        False,
        True,
    ]
    assert found[3:6] == [small] * 3, "what is within the bound, together, comes back"
    assert peak < 16 * 2**20, "a bound on memory"
