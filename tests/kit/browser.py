"""A real Chromium for the tests of the pages. What it prints as an error, or its policy refuses, fails a test."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, TimeoutError, sync_playwright

from tests.kit.patience import PATIENCE
from tests.kit.servers import chromium_program

#: It fetches nothing on its own account, and runs as root.
_ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
WAIT_MS = 20_000 * PATIENCE
#: What Chromium says when another test adds a network interface to this machine: of the machine, not of the page.
_OF_THE_MACHINE = ("net::ERR_NETWORK_CHANGED",)


@contextlib.contextmanager
def chromium() -> Generator[Browser]:
    """A browser without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_program(), args=list(_ARGUMENTS))
        yield browser
        browser.close()


class Visitor:
    """A person with a browser of their own: cookies, pages, and what went wrong in them."""

    def __init__(
        self, browser: Browser, master: str, *, width: int = 1280, height: int = 860, scheme: str = "light"
    ) -> None:
        self.master = master
        self.context: BrowserContext = browser.new_context(
            base_url=master, viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
        )  # pyright: ignore[reportArgumentType]
        self.context.set_default_timeout(WAIT_MS)
        self.problems: list[str] = []
        self.page = self.open()

    def open(self) -> Page:
        """A further tab."""
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.problems.append(f"{page.url}: {error}"))
        page.on("console", lambda said: said.type == "error" and self.problems.append(f"{page.url}: {said.text}"))
        page.on(
            "dialog", lambda dialog: self.problems.append(f"{page.url}: a dialog: {dialog.message}") or dialog.dismiss()
        )
        return page

    def login(self, username: str, password: str, path: str = "/det/") -> None:
        """By the form, as people do; then the page that was asked for."""
        self.page.goto(path)
        user = self.page.get_by_label("User")
        try:
            user.wait_for()
        except TimeoutError:
            shown = self.page.locator("body").inner_text()
            raise AssertionError(f"{self.page.url} shows no login, but {shown[:500]!r}; {self.problems}") from None
        user.fill(username)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Log in").click()
        self.page.locator("nav.side").wait_for(state="attached")  # on a phone it is behind a button

    def saw_no_problem(self, *, but: tuple[str, ...] = ()) -> None:
        """Nothing was reported as an error, except for what has one of these texts."""
        known = (*but, *_OF_THE_MACHINE)
        left = [problem for problem in self.problems if not any(text in problem for text in known)]
        assert not left, "\n".join(left)

    def picture(self, folder: Path, name: str) -> None:
        """A picture of the page."""
        folder.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=folder / f"{name}.png")
