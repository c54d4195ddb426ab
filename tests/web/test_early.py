"""What a page asks for, and in which order: its first rows wait for nothing that they do not need."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Request, Route, expect

from tests.kit.browser import WAIT_MS, Visitor

expect.set_options(timeout=WAIT_MS)


def test_list_of_a_project_does_not_wait_for_its_counts(admin: Visitor) -> None:
    held: list[Route] = []
    admin.page.route("**/api/v1/projects/1", lambda route: held.append(route))
    admin.page.goto("/det/projects/1")
    admin.page.locator("tbody tr").first.wait_for()
    expect(admin.page.get_by_role("heading", level=1)).to_have_count(0)
    admin.page.wait_for_timeout(500)
    assert held, "what stands above the list is asked for, too"
    for route in held:
        route.continue_()
    admin.page.unroute("**/api/v1/projects/1")
    expect(admin.page.get_by_role("heading", level=1)).to_be_visible()


@pytest.mark.parametrize(
    ("path", "until", "first"),
    [
        ("/det/projects/1?name=digits", "tbody tr", "/experiments-grid$"),
        ("/det/experiments/1/trials?sort=-SORT_BY_ID", "tbody tr", r"/api/v1/experiments/1/trials\?"),
        ("/det/trials/1/logs?level=INFO", "[role=log]", r"/trials/1/log-window\?levels"),
    ],
)
def test_first_rows_are_asked_for_before_the_session_is_known_and_once(
    admin: Visitor, path: str, until: str, first: str
) -> None:
    page = admin.page
    held: list[Route] = []
    asked: list[str] = []

    def note(request: Request) -> None:
        if re.search(first, request.url):
            asked.append(request.url)

    page.on("request", note)
    page.route("**/api/v1/me", lambda route: held.append(route))
    with page.expect_request(re.compile(first)):
        page.goto(path)
    expect(page.locator("#app main")).to_have_count(0)
    assert held, "the session is not known yet"
    for route in held:
        route.continue_()
    page.unroute("**/api/v1/me")
    page.locator(until).first.wait_for()
    assert len(asked) == 1, asked
