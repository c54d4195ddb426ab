"""A search as pages show it: at any of its decisions."""

from __future__ import annotations

from typing import Any

from api.schemas.base import Instant, Wire


class DecisionRow(Wire):
    """One decision. `sentences` is why, for each trial that it is about.

    Attributes:
        number: From 1.
        time: When it was recorded.
        event: What happened.
        trial_id: Of the trial that the event is about.
        value: The metric that it brought.
        actions: What was done.
        error: Why nothing could be.
        sentences: Why.
    """

    number: int
    time: Instant
    event: str
    trial_id: int | None = None
    value: float | str | None = None
    actions: str = ""
    error: str = ""
    sentences: list[str] = []


class SearchView(Wire):
    """A search after the decision `at`, of `count` that are recorded.

    Attributes:
        metric: Name of the searcher's metric.
        workflow_id: By which Temporal knows the experiment.
        sentences: What it waits for, and what it decided last.
        rungs: Brackets and rungs: how many results each has, and its trials, best first, as many as were asked for.
        decisions: The latest ones up to `at`, the newest first.
    """

    count: int
    at: int
    metric: str
    workflow_id: str
    sentences: list[str]
    rungs: list[dict[str, Any]]
    decisions: list[DecisionRow]
