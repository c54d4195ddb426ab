"""Why a search did what it did, in sentences, from its recorded decisions alone."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from workflows.searchers.base import State
from workflows.searchers.decisions import Decision, Outcome, Verdict
from workflows.searchers.messages import (
    Amended,
    Ask,
    Close,
    Create,
    Event,
    ExitReason,
    OperationCompleted,
    OperationsPosted,
    ProgressReported,
    Shutdown,
    Started,
    Steered,
    Stop,
    Suggested,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
    ValidationReported,
)

TrialName = Callable[[str], str]
"""What a trial is called, by its request id: ``trial 7``."""

_MOST_NAMES = 10
_WHAT_FOLLOWED = {
    Outcome.GOES_ON: "goes on",
    Outcome.PROMOTED: "promoted",
    Outcome.WAITS: "waits for further results",
    Outcome.STOPPED: "stopped",
    Outcome.FINISHED: "finished: this is the top",
    Outcome.REPLACED: "replaced",
}
_IN_A_RUNG = {
    Outcome.GOES_ON: "went on",
    Outcome.PROMOTED: "promoted",
    Outcome.WAITS: "waiting",
    Outcome.STOPPED: "stopped",
    Outcome.FINISHED: "finished",
    Outcome.FAILED: "failed",
    Outcome.REPLACED: "replaced",
}


def explain_trial(
    decisions: Iterable[Decision], request_id: str, trial_name: TrialName, *, metric: str = "metric"
) -> list[str]:
    """What was decided about a trial and why, in order, one sentence each.

    Args:
        decisions: The whole record, or those that name the trial (:attr:`Decision.trials`).
        request_id: The trial.
        trial_name: What to call other trials.
        metric: Name of the searcher's metric.
    """
    return [
        f"decision {decision.number}: {sentence}"
        for decision in decisions
        if request_id in decision.trials
        for sentence in _about(decision, request_id, trial_name, metric)
    ]


def explain_search(decisions: Iterable[Decision], trial_name: TrialName, *, metric: str = "metric") -> list[str]:
    """How a search stands: what it waits for, what it decided last, each rung of each bracket, and its errors.

    Args:
        decisions: The whole record.
        trial_name: What to call trials.
        metric: Name of the searcher's metric.
    """
    summary = Summary()
    for decision in decisions:
        summary.add(decision)
    return summary.sentences(trial_name, metric)


# -- one trial


def _about(decision: Decision, request_id: str, name: TrialName, metric: str) -> Iterator[str]:
    creation = next((a for a in decision.actions if isinstance(a, Create) and a.request_id == request_id), None)
    # by rung: who waited for a moment only, until the same event decided for good, did not wait
    verdicts = list({v.rung: v for v in decision.verdicts if v.request_id == request_id}.values())
    if creation is not None:
        yield f"created: {_why_created(decision.event, creation, name)}{_onward(decision, request_id)}"
    for place, verdict in enumerate(verdicts):
        is_last = place == len(verdicts) - 1
        yield _compared(decision.event, verdict, name, metric) + (_onward(decision, request_id) if is_last else "")
    if creation is None and not verdicts:
        sentence = _uncompared(decision, request_id, name, metric)
        if sentence:
            yield sentence


def _onward(decision: Decision, request_id: str) -> str:
    lengths = [a.length for a in decision.actions if isinstance(a, TrainTo) and a.request_id == request_id]
    return f", trains to {lengths[-1]}" if lengths else ""


def _why_created(event: Event, action: Create, name: TrialName) -> str:
    if action.parent is not None:
        return f"a copy of {name(action.parent)} with changed hyperparameters"
    if action.inherits is not None:
        return f"{_occasion(event, name)}, with the results of a trial of the forked experiment"
    if action.checkpoint is not None:
        return f"{_occasion(event, name)}, from the checkpoint {action.checkpoint}"
    return _occasion(event, name)


def _occasion(event: Event, name: TrialName) -> str:
    """What happened that gave a place to a new trial."""
    if isinstance(event, Started):
        return "the search began"
    if isinstance(event, Suggested):
        return f"the sampler chose its point (question {event.number})"
    if isinstance(event, Amended | OperationsPosted | ProgressReported | Steered):
        return _happened(event, name)
    if isinstance(event, TrialExitedEarly) and event.reason in (ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP):
        return f"in place of {name(event.request_id)}, whose hyperparameters are invalid"
    if isinstance(event, ValidationReported):
        return f"{name(event.request_id)} was stopped, which freed a place"
    return f"{_happened(event, name)}, which freed a place"


def _happened(event: Event, name: TrialName) -> str:
    """An event in a few words."""
    if isinstance(event, Started):
        return "the search began"
    if isinstance(event, Amended):
        changes = event.model_dump(exclude_none=True, exclude={"kind", "hyperparameters"})
        texts = [f"{field} {value}" for field, value in changes.items()]
        texts += ["a narrower space"] if event.hyperparameters is not None else []
        return f"the search was edited ({', '.join(texts) or 'nothing'})"
    if isinstance(event, Steered):
        verbs = {"add": "added", "stop": "stopped", "promote": "promoted", "boost": "boosted"}
        return f"a user {verbs[event.action]} {name(event.request_id)} by hand"
    if isinstance(event, OperationsPosted):
        return "the program of the custom search asked for it"
    if isinstance(event, Suggested):
        return f"the sampler answered question {event.number}"
    if isinstance(event, TrialExitedEarly):
        return f"{name(event.request_id)} ended early ({event.reason.value})"
    if isinstance(event, TrialClosed):
        return f"{name(event.request_id)} ended"
    if isinstance(event, OperationCompleted):
        return f"{name(event.request_id)} trained to {event.length}"
    return f"{name(event.request_id)} reported"


def _uncompared(decision: Decision, request_id: str, name: TrialName, metric: str) -> str:
    """What a decision without a comparison of the trial meant for it; empty if nothing worth a sentence."""
    event, onward = decision.event, _onward(decision, request_id)
    ordered = {type(action) for action in decision.actions if getattr(action, "request_id", None) == request_id}
    told = ", told to stop" if Stop in ordered else ", told that no further length comes" if Close in ordered else ""
    if getattr(event, "request_id", None) != request_id:
        return f"{_happened(event, name)}{told or onward}"
    if isinstance(event, TrialExitedEarly):
        return f"ended early ({event.reason.value}){told}"
    if isinstance(event, TrialClosed):
        return "ended"
    if isinstance(event, OperationCompleted):
        return f"trained to {event.length} with {metric} {_short(event.metric)}{onward or told}"
    return f"{_happened(event, name)}{onward or told}" if ordered else ""


def _compared(event: Event, verdict: Verdict, name: TrialName, metric: str) -> str:
    where = f"rung {verdict.rung} of bracket {verdict.bracket} (length {verdict.length})"
    is_own = getattr(event, "request_id", None) == verdict.request_id
    if verdict.outcome is Outcome.INVALID:
        return f"its hyperparameters turned out to be invalid on the way to {where}: it does not count"
    if verdict.outcome is Outcome.FAILED:
        return f"{_how_it_failed(event, is_own)}: counts as the worst{_of(verdict.results)} in {where}"
    verb = "reached" if is_own else "stands in"
    sentence = f"{verb} {where} with {metric} {_short(verdict.metric)}: "
    if verdict.place is not None:
        sentence += f"place {verdict.place} of {verdict.results}{_rule(verdict)}: "
    return sentence + _WHAT_FOLLOWED[verdict.outcome] + _owed_to(verdict, name)


def _how_it_failed(event: Event, is_own: bool) -> str:
    if not is_own:
        return "was to go on, but had failed before"
    return f"ended early ({event.reason.value})" if isinstance(event, TrialExitedEarly) else "ended by itself"


def _of(results: int | None) -> str:
    return "" if results is None else f" of {results} result{'s' * (results != 1)}"


def _rule(verdict: Verdict) -> str:
    if verdict.keep is None:
        return ""
    if verdict.keep == 0:
        return ", none of so few goes on yet"
    best = "only the best goes on" if verdict.keep == 1 else f"the best {verdict.keep} go on"
    return f", {best} (threshold {_short(verdict.threshold)})"


def _owed_to(verdict: Verdict, name: TrialName) -> str:
    if verdict.because_of is None:
        return ""
    cause = name(verdict.because_of)
    if verdict.outcome is Outcome.REPLACED:
        return f" by a copy of {cause}"
    if verdict.outcome is Outcome.STOPPED:
        return f", as no result after that of {cause} can change this"
    return f" because of the result of {cause}"


# -- the whole search


class _TrialStanding(State):
    length: int | None = None
    owes_result: bool = True
    is_told_to_end: bool = False


class Summary:
    """What the decisions so far add up to."""

    def __init__(self) -> None:
        self.count = 0
        self.last: Decision | None = None
        self.over: tuple[int, Shutdown] | None = None
        self.errors: list[Decision] = []
        self.open: dict[str, _TrialStanding] = {}
        self.question: int | None = None
        self.rungs: dict[tuple[int, int], dict[str, Outcome]] = {}
        self.latest: dict[tuple[int, int], Verdict] = {}

    def add(self, decision: Decision) -> None:
        self.count += 1
        if decision.error:
            self.errors.append(decision)
        if decision.actions or decision.verdicts:
            self.last = decision
        self._note_event(decision.event)
        for verdict in decision.verdicts:
            self._note_verdict(verdict)
        for action in decision.actions:
            if isinstance(action, Shutdown):
                self.over = (decision.number, action)
            elif isinstance(action, Ask):
                self.question = action.number
            elif isinstance(action, Create):
                self.open[action.request_id] = _TrialStanding()
            elif action.request_id in self.open:
                trial = self.open[action.request_id]
                if isinstance(action, TrainTo):
                    trial.length, trial.owes_result = action.length, True
                else:
                    trial.is_told_to_end = True

    def sentences(self, trial_name: TrialName, metric: str) -> list[str]:
        """As :func:`explain_search` has them."""
        if self.count == 0:
            return ["nothing has been decided yet"]
        sentences = [_waits_for(self, trial_name)]
        if self.last is not None:
            sentences.append(_last(self.last, trial_name, metric))
        sentences += _rungs(self)
        sentences += [f"decision {decision.number} could not be made: {decision.error}" for decision in self.errors]
        return sentences

    def _note_event(self, event: Event) -> None:
        if isinstance(event, TrialClosed):
            self.open.pop(event.request_id, None)
        elif isinstance(event, OperationCompleted) and event.request_id in self.open:
            self.open[event.request_id].owes_result = False
        elif isinstance(event, TrialExitedEarly) and event.request_id in self.open:
            trial = self.open[event.request_id]
            trial.owes_result, trial.is_told_to_end = False, True
        elif isinstance(event, Suggested) and event.number == self.question:
            self.question = None

    def _note_verdict(self, verdict: Verdict) -> None:
        if verdict.outcome is Outcome.INVALID:
            for outcomes in self.rungs.values():
                outcomes.pop(verdict.request_id, None)
        elif verdict.bracket is not None and verdict.rung is not None:
            key = verdict.bracket, verdict.rung
            self.rungs.setdefault(key, {})[verdict.request_id] = verdict.outcome
            self.latest[key] = verdict


def _waits_for(standing: Summary, name: TrialName) -> str:
    if standing.over is not None:
        number, shutdown = standing.over
        how = (
            "every trial failed" if shutdown.failure else "every trial was canceled" if shutdown.cancel else "completed"
        )
        return f"the search is over since decision {number}: {how}"
    sampler = ["the sampler's answer"] if standing.question is not None else []
    results = {r: trial for r, trial in standing.open.items() if _owes(trial)}
    ending = [r for r, trial in standing.open.items() if trial.is_told_to_end and r not in results]
    waited = chain(
        sampler,
        (
            f"the result of {name(r)}" + ("" if trial.length is None else f" at {trial.length}")
            for r, trial in results.items()
        ),
        (f"the end of {name(r)}" for r in ending),
    )
    named = ", ".join(islice(waited, _MOST_NAMES)) or "nothing"
    return f"waits for {named}{_more(len(sampler) + len(results) + len(ending))}"


def _owes(trial: _TrialStanding) -> bool:
    # In the ops generation a trial may learn early that no further length comes, and owes that one all the same.
    return trial.owes_result and (trial.length is not None or not trial.is_told_to_end)


def _last(decision: Decision, name: TrialName, metric: str) -> str:
    event = decision.event
    metrics = event.metrics if isinstance(event, ValidationReported) else {}
    value = metrics.get(metric) if isinstance(event, ValidationReported) else getattr(event, "metric", None)
    result = "" if value is None else f" ({metric} {_short(value)})"
    done = [_done(action, name) for action in decision.actions[:_MOST_NAMES]]
    what = f"{', '.join(done)}{_more(len(decision.actions))}" if done else "compared, nothing to do"
    return f"decided last (decision {decision.number}): {_happened(event, name)}{result}: {what}"


def _more(count: int) -> str:
    """How many are not named."""
    return f" and {count - _MOST_NAMES} more" if count > _MOST_NAMES else ""


def _done(action: Any, name: TrialName) -> str:
    if isinstance(action, Create):
        return f"{name(action.request_id)} created"
    if isinstance(action, TrainTo):
        return f"{name(action.request_id)} trains to {action.length}"
    if isinstance(action, Stop | Close):
        return f"{name(action.request_id)} {'stopped' if isinstance(action, Stop) else 'closed'}"
    return f"question {action.number} to the sampler" if isinstance(action, Ask) else "the search is over"


def _rungs(standing: Summary) -> Iterator[str]:
    for (bracket, rung), outcomes in sorted(standing.rungs.items()):
        latest = standing.latest[bracket, rung]
        counts = Counter(outcomes.values())
        texts = ", ".join(f"{counts[outcome]} {text}" for outcome, text in _IN_A_RUNG.items() if counts[outcome])
        results = f"{len(outcomes)} result{'s' * (len(outcomes) != 1)}"
        yield f"bracket {bracket}, rung {rung} (length {latest.length}): {results}, {texts}{_rule(latest)}"


def _short(value: Any) -> str:
    """A number in few digits; what is none as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "none" if value is None else str(value)
    return "NaN" if math.isnan(value) else f"{value:.4g}"
