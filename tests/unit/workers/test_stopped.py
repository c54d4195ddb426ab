"""What `det down` says of what it has stopped."""

from __future__ import annotations

import pytest

from workers.stopped import sentences
from workflows import names

TRIAL = {names.TRIAL_LABEL: "7"}
GENERIC = {names.KIND_LABEL: "GENERIC"}


@pytest.mark.parametrize(
    ("containers", "told"),
    [
        ([], []),
        ([{}], []),
        ([TRIAL, TRIAL], ["1 running trial goes on from the latest checkpoint"]),
        ([TRIAL, {names.TRIAL_LABEL: "8"}], ["2 running trials go on from the latest checkpoint"]),
        ([GENERIC | {names.GOES_ON_LABEL: "yes"}], ["1 generic task starts again from the beginning"]),
        (
            [GENERIC, {names.KIND_LABEL: "NOTEBOOK"}, {names.KIND_LABEL: "NOTEBOOK"}, {names.KIND_LABEL: "TENSORBOARD"}],
            ["1 generic task, 2 notebooks, 1 TensorBoard ended for good: what they held in memory is lost, and nothing of"
             " it is started again"],
        ),
    ],
)  # fmt: skip
def test_each_kind_has_its_fate(containers: list[dict[str, str]], told: list[str]) -> None:
    assert list(sentences(containers)) == told
