"""Long lists in pages."""

from __future__ import annotations

from typing import Any

import pytest

from cli import paging
from cli.render import Form


class Listed:
    """A list of a server, and what was asked of it."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.asked: list[tuple[int, int]] = []

    def read(self, size: int, start: int) -> dict[str, Any]:
        self.asked.append((size, start))
        items = [{"id": number} for number in range(start, min(self.total, start + size))]
        return {"items": items, "pagination": {"total": self.total}}


def test_pages_of_a_long_list_grow() -> None:
    listed = Listed(100_000)
    found = paging.items(listed.read, "items")
    assert [item["id"] for item in found] == list(range(100_000))
    assert [size for size, _ in listed.asked[:5]] == [200, 400, 800, 1600, 1600]
    assert len(listed.asked) < 70


@pytest.mark.parametrize(
    ("form", "asked"),
    [
        (Form(limit=300, pages="all"), [(300, 0), (300, 300), (300, 600), (300, 900)]),
        (Form(limit=300, pages="1"), [(300, 0)]),
        (Form(pages="1"), [(200, 0)]),
        (Form(offset=500), [(200, 500), (400, 700)]),
    ],
)
def test_pages_are_what_the_options_say(form: Form, asked: list[tuple[int, int]]) -> None:
    listed = Listed(1000)
    paging.items(listed.read, "items", form)
    assert listed.asked == asked
