"""Large payloads are compressed on the way to Temporal, and come back as they were."""

from temporalio.api.common.v1 import Payload

from workflows.codec import CompressLarge


async def test_large_payload_is_smaller_on_the_wire_and_the_same_again() -> None:
    small = Payload(metadata={"encoding": b"json/plain"}, data=b'{"a": 1}')
    large = Payload(metadata={"encoding": b"json/plain"}, data=b'["1234"]' * 100_000)
    codec = CompressLarge()
    sent = await codec.encode([small, large])
    assert sent[0] == small, "Temporal's Web UI can show it"
    assert len(sent[1].data) < len(large.data) / 10
    assert await codec.decode(sent) == [small, large]
