"""Finds the payloads within Temporal's messages, wherever they lie, and replaces them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload

from workflows.encryption import Keys

Kind = TypeVar("Kind", bound=Message)


def transcode(message: Message, keys: Keys, change: Callable[[Payload, Keys], Payload]) -> None:
    """Replace each payload within a message by what `change` makes of it. Raises: what `change` does."""
    for payload in list(messages_in(message, Payload)):
        payload.CopyFrom(change(payload, keys))


def messages_in(message: Message, kind: type[Kind]) -> Iterator[Kind]:
    """The messages of a kind within a message; what lies within one of them is not looked for."""
    if isinstance(message, kind):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for part in _parts(field, value):
            yield from messages_in(part, kind)


def _parts(field: Any, value: Any) -> Iterator[Message]:
    if isinstance(value, Message):
        yield value
    elif field.message_type.GetOptions().map_entry:
        yield from (part for part in value.values() if isinstance(part, Message))
    else:
        yield from value
