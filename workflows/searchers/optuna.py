"""Trials whose points are chosen by one of Optuna's samplers, outside of the search.

The search asks for one point at a time, so that each point is chosen in the knowledge of all earlier ones, those of
running trials included.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

from workflows.searchers.base import INVALID_HP, Frame, TrialState
from workflows.searchers.messages import Amended, Ask, ExitReason, Suggested
from workflows.searchers.random import IndependentTrials
from workflows.searchers.study import (
    Asked,
    Begun,
    Entry,
    StudySettings,
    SuggestOrder,
    Told,
    hparams_of,
    next_name,
    point_of,
)
from workflows.searchers.values import SearchError, parse_metric, sort_key


class OptunaSearch(IndependentTrials):
    """A number of trials at points that a sampler chooses; one with invalid hyperparameters is replaced.

    Attributes:
        metric: Name of the metric that the sampler receives.
        settings: What the sampler's study is made from.
        asked: Number of the last question.
        is_asking: Whether it has no answer yet.
        log: What the sampler knows, or receives with the next question.
        name: Name of the study with the whole log.
        question: Entries of the log up to the last question, and the name of the study then.
        known: The same of the last question that was answered.
        begun: Trials in the log.
        open: Place in the log's order of trials of each trial whose end is not in the log.
        best: Best metric so far of those of them that have one (events generation).
        running: Trials that are not over.
    """

    kind: Literal["optuna"] = "optuna"
    metric: str
    settings: StudySettings
    asked: int = 0
    is_asking: bool = False
    log: list[Entry] = []
    name: str
    question: tuple[int, str] = (0, "")
    known: tuple[int, str] = (0, "")
    begun: int = 0
    open: dict[str, int] = {}
    best: dict[str, float] = {}
    running: int = 0

    @property
    def ends_by_itself(self) -> bool:
        """Not while a point is on its way."""
        return not self.is_asking

    def wants_validations(self, frame: Frame) -> bool:
        """In the events generation a trial's value is the best of its validations."""
        return frame.generation == "events"

    def order(self, number: int, *, whole: bool = False) -> SuggestOrder | None:
        """What the process that samples is sent for a question; None if it is not open any more.

        Args:
            number: Number of the :class:`Ask`.
            whole: Whether to send the whole history: the process has answered that it needs it.
        """
        if not self.is_asking or number != self.asked:
            return None
        start, known = (0, "") if whole else self.known
        end, name = self.question
        return SuggestOrder(number=number, settings=self.settings, known=known, name=name, entries=self.log[start:end])

    def fill(self, frame: Frame) -> None:
        """Take over an inherited point, or ask for one, while there are places; one question at a time."""
        while (
            not self.is_asking and self.made < self.total and (not self.concurrency or self.running < self.concurrency)
        ):
            if frame.inherited:
                self._begin(frame, frame.inherited[0].hparams)
            else:
                self._ask(frame)

    def suggested(self, frame: Frame, event: Suggested) -> None:
        """Begin the trial, and ask for the next one if there is a place for it."""
        if event.number > self.asked:
            raise SearchError(f"nobody asked for a point number {event.number}: the last one was {self.asked}")
        if self.is_asking and event.number == self.asked:
            self.is_asking = False
            self.known = self.question
            self._begin(frame, event.hparams)
            self.fill(frame)

    def validated(self, frame: Frame, request_id: str, metrics: dict[str, Any]) -> None:
        """Remember the best metric."""
        if self.metric not in metrics:
            raise SearchError(f"the search needs the metric {self.metric!r}, which the validation report does not have")
        value = parse_metric(metrics[self.metric], self.metric)
        best = self.best.get(request_id, math.nan)
        smaller_is_better = self.settings.smaller_is_better
        if math.isfinite(value) and sort_key(value, smaller_is_better=smaller_is_better) < sort_key(
            best, smaller_is_better=smaller_is_better
        ):
            self.best[request_id] = value

    def check_metric(self, metric: Any) -> None:
        """It must be a number, or a word for NaN or infinity."""
        parse_metric(metric, self.metric)

    def completed(self, frame: Frame, request_id: str, metric: Any) -> None:
        """Tell the sampler, unless the length was raised meanwhile."""
        super().completed(frame, request_id, metric)
        if frame.trials[request_id].completed:
            self._tell(request_id, parse_metric(metric, self.metric))

    def exited(self, frame: Frame, request_id: str, reason: ExitReason) -> None:
        """Invalid hyperparameters do not count; the replacement follows when the trial is closed."""
        if reason in INVALID_HP:
            self.made -= 1
        if reason is ExitReason.ERRORED or reason in INVALID_HP:
            self._tell(request_id, math.nan)

    def closed(self, frame: Frame, request_id: str) -> None:
        """The place is free."""
        self.done += self.counts(frame.trials[request_id])
        self.running -= 1
        self._tell(request_id, self.best.get(request_id, math.nan))
        self.fill(frame)

    def amend(self, frame: Frame, event: Amended) -> None:
        """As for random search; in a narrower space the study begins anew with those trials that are in it."""
        super().amend(frame, event)
        if event.hyperparameters is not None:
            self._move(frame)

    def rename(self, names: Mapping[str, str]) -> None:
        """The log goes by numbers."""
        self.open = {names[key]: place for key, place in self.open.items()}
        self.best = {names[key]: value for key, value in self.best.items()}

    def counts(self, trial: TrialState) -> bool:
        """Not if another one takes its place."""
        return trial.exit_reason not in INVALID_HP

    def _ask(self, frame: Frame) -> None:
        self.asked += 1
        self.is_asking = True
        self._note(Asked(asked=self.asked))
        self.question = (len(self.log), self.name)
        frame.add(Ask(number=self.asked))

    def _begin(self, frame: Frame, hparams: dict[str, Any]) -> None:
        request_id = frame.create(hparams)
        self.made += 1
        self.running += 1
        if frame.max_units is not None:
            frame.train_to(request_id, frame.max_units)
            frame.close(request_id)
        self.open[request_id] = self.begun
        self.begun += 1
        self._note(Begun(point=point_of(self.settings.space, hparams)))

    def _tell(self, request_id: str, value: float) -> None:
        place = self.open.pop(request_id, None)
        self.best.pop(request_id, None)
        if place is not None:
            # An infinite metric is a run that blew up, whichever direction is better.
            self._note(Told(trial=place, value=value if math.isfinite(value) else None))

    def _note(self, entry: Entry) -> None:
        self.log.append(entry)
        self.name = next_name(self.name, entry)

    def _move(self, frame: Frame) -> None:
        before, self.settings = self.settings, self.settings.model_copy(update={"space": frame.space})
        log, self.log, self.name = self.log, [], self.settings.name()
        for entry in log:
            if isinstance(entry, Begun) and entry.point is not None:
                entry = Begun(point=point_of(frame.space, hparams_of(before.space, entry.point)))
            self._note(entry)
        self.known = (0, "")
        if self.is_asking:  # the answer may lie outside by now
            self._ask(frame)
