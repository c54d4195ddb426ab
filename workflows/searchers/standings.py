"""A search as people look at it: its rungs with who stands where, and its decisions as rows.

Pure, as all of this package: `det experiment rungs` and the pages of the API show the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from workflows.searchers.base import RungView
from workflows.searchers.decisions import Decision, Verdict
from workflows.searchers.messages import Amended, Event, Steered

_MOST_NAMES = 8
_VERBS = {"train_to": "train", "ask": "ask the sampler", "shutdown": "end the search"}


class Comparisons:
    """The last comparison of each trial in each rung, and each rung's latest threshold.

    Args:
        decisions: Of the search, in order. Further ones are added as they come.
    """

    def __init__(self, decisions: Iterable[Decision] = ()) -> None:
        self.verdicts: dict[tuple[int | None, int | None], dict[str, Verdict]] = {}
        self.thresholds: dict[tuple[int | None, int | None], float] = {}
        for decision in decisions:
            self.add(decision)

    def add(self, decision: Decision) -> None:
        """Take the next decision."""
        for verdict in decision.verdicts:
            rung = verdict.bracket, verdict.rung
            self.verdicts.setdefault(rung, {})[verdict.request_id] = verdict
            if verdict.threshold is not None:
                self.thresholds[rung] = verdict.threshold


class Standing:
    """A rung with the last comparison of each of its trials.

    Args:
        view: The rung.
        comparisons: Of the search.
    """

    def __init__(self, view: RungView, comparisons: Comparisons) -> None:
        self.view = view
        self.verdicts = comparisons.verdicts.get((view.bracket, view.rung), {})
        self.threshold = comparisons.thresholds.get((view.bracket, view.rung))

    @property
    def went_on(self) -> int | None:
        """How many went on to the next rung; None of the last one."""
        is_top = any(verdict.outcome == "finished" for verdict in self.verdicts.values())
        return None if is_top else sum(entry[2] for entry in self.view.entries)

    def outcome(self, request_id: str) -> str | None:
        """What followed for a trial here; None before it was compared."""
        verdict = self.verdicts.get(request_id)
        return None if verdict is None else verdict.outcome.value

    def as_json(self, numbers: Mapping[str, int]) -> dict[str, Any]:
        """With the numbers of the trials by their request ids."""
        return {
            "bracket": self.view.bracket,
            "rung": self.view.rung,
            "length": self.view.length,
            "threshold": word(self.threshold),
            "results": self.view.results,
            "entries": [
                {
                    "trialId": numbers.get(request_id),
                    "requestId": request_id,
                    "metric": word(metric),
                    "wentOn": went_on,
                    "outcome": self.outcome(request_id),
                }
                for request_id, metric, went_on in self.view.entries
            ],
        }


def event_words(event: Event) -> str:
    """What happened: `validation completed`, `amended (max_trials 20)`."""
    words = str(event.kind).replace("_", " ")
    if isinstance(event, Steered):
        return f"{words} ({event.action})"
    if not isinstance(event, Amended):
        return words
    changes = event.model_dump(exclude_none=True, exclude={"kind"})
    shown = [name if name == "hyperparameters" else f"{name} {value}" for name, value in changes.items()]
    return f"{words} ({', '.join(shown)})"


def about(event: Event) -> str | None:
    """The request id of the trial that an event is about, if it is about one."""
    return getattr(event, "request_id", None)


def reported(event: Event, metric: str) -> float | None:
    """The value that an event brought."""
    metrics: Mapping[str, Any] = getattr(event, "metrics", {})
    return metrics.get(metric, getattr(event, "metric", None))


def action_words(decision: Decision, name: Callable[[str], str]) -> str:
    """What was done, the same for several trials in one: `create trial 1, trial 2; train trial 1, trial 2 to 4`."""
    return "; ".join(
        f"{verb}{f' {_first(found, name)}' if found else ''}{suffix}" for verb, suffix, found in _actions(decision)
    )


def word(value: float | None) -> float | str | None:
    """JSON has no words for NaN and infinity."""
    return value if value is None or math.isfinite(value) else "NaN" if math.isnan(value) else str(value)


def _actions(decision: Decision) -> Iterator[tuple[str, str, list[str]]]:
    trials: dict[tuple[str, str], list[str]] = {}
    for action in decision.actions:
        fields: Any = action
        length = getattr(fields, "length", None)
        request_id = getattr(fields, "request_id", None)
        verb = _VERBS.get(fields.kind, str(fields.kind))
        found = trials.setdefault((verb, "" if length is None else f" to {length}"), [])
        found += [] if request_id is None else [request_id]
    for (verb, suffix), found in trials.items():
        yield verb, suffix, found


def _first(found: Sequence[str], name: Callable[[str], str]) -> str:
    more = len(found) - _MOST_NAMES
    return ", ".join(map(name, found[:_MOST_NAMES])) + (f" and {more} more" if more > 0 else "")
