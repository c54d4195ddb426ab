"""The published clients, a cluster for each, and the record of what they saw."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.compat.published import GENERATIONS, Published, published
from tests.compat.record import Record

_FOLDER = Path(__file__).parent
_is_complete = pytest.StashKey[bool]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The record is looked at when everything else here has run."""
    ours = [item for item in items if item.path.parent == _FOLDER]
    last = [item for item in ours if item.path.name == "test_record.py"]
    items[:] = [item for item in items if item not in last] + last
    config.stash[_is_complete] = {item.path for item in ours} == set(_FOLDER.glob("test_*.py"))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """A selection by name leaves out tests whose results are in the committed record."""
    for item in items:
        if item.path.parent == _FOLDER:
            item.config.stash[_is_complete] = False


@pytest.fixture(scope="session")
def record() -> Record:
    """What the clients saw in this run."""
    return Record()


@pytest.fixture
def is_complete(request: pytest.FixtureRequest) -> bool:
    """Whether every test here is part of this run."""
    by_node = any("::" in argument for argument in request.config.args)
    return request.config.stash[_is_complete] and not by_node


@pytest.fixture(scope="package", params=GENERATIONS)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, record: Record
) -> Iterator[Published]:
    """A published client with its cluster."""
    with published(request.param, tmp_path_factory.mktemp(f"compat-{request.param}"), record) as made:
        yield made


@dataclass(frozen=True)
class Finished:
    """An experiment that ended well: six steps, two checkpoints."""

    experiment: int
    trial: int
    checkpoints: tuple[str, str]


@pytest.fixture(scope="package")
def finished(client: Published) -> Finished:
    """One that tests look at, and leave as it is."""
    options = {
        "checkpoint_storage": {"type": "shared_fs", "host_path": str(client.folder / "storage"), "save_trial_latest": 5}
    }
    experiment = client.create("--follow-first-trial", **options)
    client.wait_for(experiment)
    ((trial,),) = client.rows(f"SELECT id FROM trials WHERE experiment_id = {experiment}")
    log = client.det("trial", "logs", str(trial))
    found = re.findall(r"saved (\d+) as ([0-9a-f-]{36})", log)
    assert [steps for steps, _ in found] == ["4", "6"], log
    return Finished(experiment, trial, (found[0][1], found[1][1]))
