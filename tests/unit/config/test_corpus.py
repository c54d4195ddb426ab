"""Configurations as strangers write them, of our own writing: what an old reader accepted is accepted, and warned of."""

from __future__ import annotations

from pathlib import Path

import pytest

from workflows.config import ClusterDefaults, ExperimentConfig, loose_numbers, parse_experiment_config, read_config
from workflows.config.yamltext import Document

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.yaml"))
DEFAULTS = ClusterDefaults(checkpoint_storage={"type": "shared_fs", "host_path": "/tmp"})


def read(name: str) -> tuple[Document, ExperimentConfig]:
    document = read_config((Path(__file__).parent / "corpus" / f"{name}.yaml").read_text())
    return document, parse_experiment_config(document, cluster=DEFAULTS, seed=1)


@pytest.mark.parametrize("path", CORPUS, ids=[path.stem for path in CORPUS])
def test_configuration_is_accepted(path: Path) -> None:
    document = read_config(path.read_text())
    if path.stem == "project_alone":  # its workspace comes with the request: see tests/integration/api/test_create.py
        document.value.pop("project")
    parse_experiment_config(document, cluster=DEFAULTS, seed=1)


def test_numbers_of_old_readers_are_numbers_where_one_is_expected_and_texts_elsewhere() -> None:
    document, config = read("loose_numbers")
    assert (config.records_per_epoch, config.searcher.max_length.units) == (60_000, 1_200_000)  # pyright: ignore
    assert (config.name, config.description) == ("sweep 2024_01", "2024_01")
    assert list(config.labels) == ["2024_01", "v1", "1_000"]
    wire = config.to_wire()["hyperparameters"]
    assert [wire[name]["val"] for name in ("warmup_steps", "flags")] == [1000, 3]
    assert [told.partition(" is read")[0] for told in loose_numbers(document)] == [
        "<config>.hyperparameters.warmup_steps: 1_000",
        "<config>.hyperparameters.flags: 0b11",
        "<config>.hyperparameters.momentum.maxval: 1_0.5",
        "<config>.records_per_epoch: 60_000",
        "<config>.searcher.max_length.records: 1_200_000",
    ]


def test_slots_of_notebooks_are_ignored() -> None:
    _, config = read("notebook_slots")
    assert config.resources.slots_per_trial == 2
    assert "slots" not in config.to_wire()["resources"]
