"""Payloads are encrypted on their way to Temporal, with keys that rotate."""

import base64

import pytest
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflowservice.v1 import PollActivityTaskQueueResponse, RespondActivityTaskFailedRequest

from api.temporal.transcoding import messages_in, transcode
from workflows.codec import REFUSED, CompressLarge
from workflows.encryption import BadKeys, Encrypt, Keys, NoSuchKey, hide, opened, parse_keys, seal

OLD, NEW = base64.b64encode(b"o" * 32).decode(), base64.b64encode(b"n" * 32).decode()
BEFORE = parse_keys(f"2026-10 {OLD}\n")
AFTER = parse_keys(f"# the first one encrypts\n2026-11 {NEW}\n2026-10 {OLD}\n")
SECRET = Payload(metadata={"encoding": b"json/plain"}, data=b'"the password"')


def codec(keys: Keys) -> Encrypt:
    return Encrypt(CompressLarge(), lambda: keys)


async def test_payload_is_unreadable_on_the_wire_and_the_same_again_also_after_keys_rotated() -> None:
    [sent] = await codec(BEFORE).encode([SECRET])
    assert b"password" not in sent.SerializeToString()
    assert sent.metadata["undeterred-key"] == b"2026-10", "the key is named"
    assert await codec(AFTER).decode([sent]) == [SECRET], "the old key is kept for reading"
    [renewed] = await codec(AFTER).encode([SECRET])
    assert renewed.metadata["undeterred-key"] == b"2026-11", "the first one encrypts"
    with pytest.raises(NoSuchKey, match=r"'2026-11', which temporal_encryption_keys_file does not hold.* 2026-10"):
        await codec(BEFORE).decode([renewed])


async def test_equal_payloads_are_not_equal_once_they_are_encrypted() -> None:
    first, second = await codec(BEFORE).encode([SECRET, SECRET])
    assert first.data != second.data


async def test_what_is_large_is_compressed_before_and_what_is_plain_is_still_read() -> None:
    large = Payload(metadata={"encoding": b"json/plain"}, data=b'["1234"]' * 100_000)
    [sent] = await codec(BEFORE).encode([large])
    assert len(sent.data) < len(large.data) / 10
    assert await codec(BEFORE).decode([sent, SECRET]) == [large, SECRET]


@pytest.mark.parametrize("change", ["flipped", "short", "other id"])
async def test_what_was_changed_is_refused(change: str) -> None:
    sent = seal(SECRET, AFTER)
    if change == "flipped":
        sent.data = sent.data[:-1] + bytes([sent.data[-1] ^ 1])
    elif change == "short":
        sent.data = sent.data[:20]
    else:
        sent.metadata["undeterred-key"] = b"2026-10"
    [found] = await codec(AFTER).decode([sent])
    assert found.metadata["encoding"] == REFUSED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "holds no key"),
        ("just-one-word", "line 1: expected the id of a key"),
        ("# ok\na b!d", "line 2: key 'a': expected base64"),
        ("a c2hvcnQ=", "line 1: key 'a': 5 bytes: expected 32"),
        (f"a {OLD}\na {NEW}", "line 2: key 'a' is there twice"),
    ],
)
def test_text_without_keys_is_refused_with_its_line(text: str, expected: str) -> None:
    with pytest.raises(BadKeys, match=expected):
        parse_keys(text)


def test_gateway_decrypts_tasks_and_encrypts_failures_with_all_that_lies_in_them() -> None:
    sealed = Payloads(payloads=[seal(SECRET, BEFORE)])
    task = PollActivityTaskQueueResponse(input=sealed, heartbeat_details=sealed)
    task.header.fields["key"].CopyFrom(seal(SECRET, BEFORE))
    transcode(task, BEFORE, opened)
    assert list(messages_in(task, Payload)) == [SECRET] * 3

    told = RespondActivityTaskFailedRequest()
    told.failure.message, told.failure.cause.message = "the password is wrong", "as the password says"
    told.failure.cause.application_failure_info.details.payloads.append(SECRET)
    for failure in messages_in(told, Failure):
        hide(failure)
    transcode(told, BEFORE, seal)
    assert b"password" not in told.SerializeToString()
    transcode(told, BEFORE, opened)
    assert b"the password is wrong" in told.failure.encoded_attributes.data
    assert told.failure.cause.application_failure_info.details.payloads[0] == SECRET
