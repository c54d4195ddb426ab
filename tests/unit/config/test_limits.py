"""When the log of a task warns of its end, and in which words."""

from __future__ import annotations

import pytest

from workflows.config.limits import (
    idle_end,
    idle_warned_s,
    idle_warning,
    lifetime_end,
    lifetime_warned_s,
    lifetime_warning,
)
from workflows.lifecycle.task import TaskKind


@pytest.mark.parametrize(("limit_s", "idle_s", "lifetime_s"), [(3600, 300, 300), (300, 150, 300), (2, 1, 2)])
def test_warning_comes_five_minutes_before_or_earlier_if_the_limit_is_shorter(
    limit_s: float, idle_s: float, lifetime_s: float
) -> None:
    assert (idle_warned_s(limit_s), lifetime_warned_s(limit_s)) == (idle_s, lifetime_s)


def test_warning_says_when_why_and_what_to_do() -> None:
    assert idle_warning("t", TaskKind.NOTEBOOK, "JupyterLab (x)", 300.2, 1200) == (
        "JupyterLab (x) will end in 5 minutes, since it has not been used for 15m0s: use it, or"
        " `det notebook set idle-timeout t 40m0s`"
    )
    assert lifetime_warning("t", TaskKind.GENERIC, "Generic Task t", 60, 7200) == (
        "Generic Task t will end in 1 minute, since its max_lifetime is 2h0m0s: `det task set lifetime t 4h0m0s` lets it"
        " run longer"
    )
    assert "will end in 1m30s," in lifetime_warning("t", TaskKind.SHELL, "a", 90, 90)
    assert "will end in 0s," in idle_warning("t", TaskKind.TENSORBOARD, "a", 0.2, 2)


def test_end_names_the_limit() -> None:
    assert idle_end(300) == "idle for more than 5m0s: service is inactive"
    assert lifetime_end(28800) == "it has run for 8h0m0s, its max_lifetime"
