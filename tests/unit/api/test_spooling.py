"""Long answers go to a file before they are sent."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from api.schemas.spooling import joined, spooled


def sent(pieces: Iterator[bytes]) -> tuple[bytes, str, str]:
    """What a client reads of these pieces: the body, its length and its kind."""

    def answer(request: Request) -> Response:
        return spooled(pieces, "text/csv")

    with TestClient(Starlette(routes=[Route("/", answer)])) as client:
        found = client.get("/")
    return found.content, found.headers["content-length"], found.headers["content-type"].partition(";")[0]


@pytest.mark.parametrize("count", [0, 1, 1_500_000, 5_000_000])
def test_answer_is_all_pieces_with_their_length(count: int) -> None:
    pieces = [bytes([n % 251]) * min(100_000, count - n * 100_000) for n in range(-(-count // 100_000))]
    body = b"".join(pieces)
    assert len(body) == count
    assert sent(iter(pieces)) == (body, str(count), "text/csv")


def test_error_comes_before_the_answer_begins() -> None:
    def pieces() -> Iterator[bytes]:
        yield b"x" * 2_000_000
        raise LookupError("gone meanwhile")

    with pytest.raises(LookupError):
        spooled(pieces(), "text/csv")


@pytest.mark.parametrize("parts", [[], [[1]], [[1, 2], [3]]])
def test_parts_of_a_list_are_one_list(parts: list[list[int]]) -> None:
    found = b"".join(joined(b'{"all":[', (orjson.dumps(part)[1:-1] for part in parts), b"]}"))
    assert orjson.loads(found) == {"all": [number for part in parts for number in part]}
