"""One cluster with a search that has ended, and one browser, for each module of the tests of the pages.

Playwright keeps an event loop running for as long as it is open: no asynchronous test may follow before it is closed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.kit.browser import Visitor, chromium
from tests.kit.embedded import Embedded
from tests.kit.servers import REPOSITORY

DIGITS = REPOSITORY / "examples" / "digits"
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Embedded:
    """A cluster that was stopped, for copies: it has two slots, and experiment 1 is the demo's search, and over."""
    made = Embedded(tmp_path_factory.mktemp("searched"), slots=2)
    made.environment["UNDETERRED_STORAGE_ROOTS"] = str(tmp_path_factory.getbasetemp())
    with made.started():
        done = made.det("experiment", "create", str(DIGITS / "adaptive.yaml"), str(DIGITS), "--follow")
        assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.fixture(scope="module")
def cluster(searched: Embedded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """A copy of it, on the same ports."""
    folder = tmp_path_factory.mktemp("web")
    shutil.copytree(searched.folder.parent, folder, dirs_exist_ok=True)
    copy = Embedded(folder, slots=2)
    own = {name: copy.environment[name] for name in ("UNDETERRED_HOME", "DET_DEBUG_CONFIG_PATH")}
    copy.environment = searched.environment | own
    with copy.started() as running:
        yield running


@pytest.fixture
def visit(browser: Browser, cluster: Embedded) -> Iterator[Callable[..., Visitor]]:
    """Makes visitors; at the end none of them may have seen an error."""
    visitors: list[Visitor] = []

    def make(**how: object) -> Visitor:
        visitors.append(Visitor(browser, cluster.environment["DET_MASTER"], **how))  # pyright: ignore[reportArgumentType]
        return visitors[-1]

    yield make
    for visitor in visitors:
        visitor.context.close()


@pytest.fixture
def admin(visit: Callable[..., Visitor]) -> Iterator[Visitor]:
    """The administrator, logged in."""
    visitor = visit()
    visitor.login("admin", PASSWORD)
    yield visitor
    visitor.saw_no_problem(but=("Failed to load resource",))


def created(output: str) -> int:
    """The number of the experiment that `det` says it created."""
    found = re.search(r"Created experiment (\d+)", output)
    assert found is not None, output
    return int(found[1])


def pictures() -> Path:
    """Where pictures of the pages go."""
    return REPOSITORY / "build" / "pages"
