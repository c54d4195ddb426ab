"""A search: all of its state in one model, events in, actions out. Source: spec searchers.md §1 and §9."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import Field

from workflows.config import (
    AdaptiveAshaSearcher,
    AsyncHalvingSearcher,
    CustomSearcher,
    ExperimentConfig,
    GridSearcher,
    OptunaSearcher,
    PbtSearcher,
    RandomSearcher,
    SingleSearcher,
    grid_size,
)
from workflows.searchers.adaptive import AdaptiveAsha, plan_brackets
from workflows.searchers.async_halving import AnyBracket, AsyncHalving, BracketKind, new_bracket
from workflows.searchers.base import INVALID_HP, Frame, Generation, Inherited, RungView, State, TrialState, TrialView
from workflows.searchers.custom import CustomSearch, QueuedEvent
from workflows.searchers.decisions import Decision
from workflows.searchers.grid import GridSearch
from workflows.searchers.messages import (
    Action,
    Amended,
    Create,
    Event,
    ExitReason,
    OperationCompleted,
    OperationsPosted,
    ProgressReported,
    Shutdown,
    Started,
    Steered,
    Suggested,
    TrialClosed,
    TrialExitedEarly,
    ValidationReported,
)
from workflows.searchers.mt19937 import MT19937
from workflows.searchers.narrowing import narrowed
from workflows.searchers.optuna import OptunaSearch
from workflows.searchers.pbt import Exploration, PopulationBasedTraining
from workflows.searchers.random import RandomSearch
from workflows.searchers.single import SingleSearch
from workflows.searchers.study import StudySettings, SuggestOrder
from workflows.searchers.values import SearchError

AnyMethod = Annotated[
    SingleSearch
    | RandomSearch
    | GridSearch
    | AsyncHalving
    | AdaptiveAsha
    | PopulationBasedTraining
    | OptunaSearch
    | CustomSearch,
    Field(discriminator="kind"),
]


_DONE = "the search is done with this trial: `det experiment fork` goes on from what it has"


class Search(State):
    """The whole state of an experiment's search.

    It is changed only by :meth:`handle`; ``Search.model_validate_json(search.model_dump_json())`` is the same search,
    byte for byte when dumped again. A repeated or a late event changes nothing, so events may be delivered twice.

    Attributes:
        frame: Trials, random generator, search space.
        method: The algorithm with its own state.
        is_started: Whether the first trials were asked for.
        ended: Number of trials that are over.
        decisions: Number of decisions so far.
        shutdown: The last action, once the search is over.
    """

    frame: Frame
    method: AnyMethod
    is_started: bool = False
    ended: int = 0
    decisions: int = 0
    shutdown: Shutdown | None = None

    @classmethod
    def new(cls, config: ExperimentConfig, *, lends: bool | None = None, inherited: Sequence[Inherited] = ()) -> Self:
        """The search that a config describes; send :class:`Started` next.

        Args:
            config: The experiment's config.
            lends: Whether a bracket of ``adaptive_asha`` that has no trials left hands its places on to the others;
                False is exactly what Determined does, None what ``searcher.lend_places`` says.
            inherited: Trials of a forked experiment, oldest first: new trials take their points over.

        Raises:
            SearchError: There is nothing to search.
        """
        generation = generation_of(config)
        is_lending: bool = getattr(config.searcher, "lend_places", True) if lends is None else lends
        method = _new_method(config, generation, is_lending)
        frame = Frame(
            generation=generation,
            max_units=_max_units(config) if generation == "ops" else None,
            space=config.hyperparameters,
            rng=MT19937.seeded(config.reproducibility.experiment_seed),
            inherited=list(inherited),
        )
        return cls(frame=frame, method=method)

    @property
    def generation(self) -> Generation:
        """``ops``: the search hands out lengths. ``events``: it watches validations and stops trials."""
        return self.frame.generation

    @property
    def wants_validations(self) -> bool:
        """Whether a :class:`ValidationReported` can lead to a decision."""
        return self.method.wants_validations(self.frame)

    def is_decision(self, event: Event) -> bool:
        """Whether an event belongs to the record: progress does not where it decides nothing."""
        return self.method.wants_progress or not isinstance(event, ProgressReported)

    def is_repeat(self, event: Event) -> bool:
        """Whether it was decided on before: its sender did not hear of it, and asks again."""
        if isinstance(event, Steered):
            return event.key in self.frame.steered
        if not isinstance(event, OperationCompleted):
            return False
        trial = self.frame.trials.get(event.request_id)
        return self._is_retired(event.request_id) if trial is None else trial.has_reached(event.length)

    def decide(self, event: Event) -> Decision:
        """Take an event; returns the record of what is to be done.

        Raises:
            SearchError: As :meth:`handle`.
        """
        actions = self.handle(event)
        self.decisions += self.is_decision(event)
        return Decision(number=self.decisions, event=event, actions=actions, verdicts=self.frame.take_verdicts())

    def fail(self, event: Event, error: str) -> Decision:
        """The record of an event that the search cannot go on from."""
        self.decisions += 1
        return Decision(number=self.decisions, event=event, error=error)

    def handle(self, event: Event) -> list[Action]:
        """Take an event and return what is to be done, in order.

        Raises:
            SearchError: The event cannot be true (unknown trial, a length never given) or lacks a metric that the
                search needs. Nothing was changed.
        """
        if self.shutdown is not None:
            return []
        if isinstance(event, Started):
            if not self.is_started:
                self.is_started = True
                self.method.start(self.frame)
        elif isinstance(event, Suggested):
            self.method.suggested(self.frame, event)
        elif isinstance(event, OperationsPosted):
            self.method.posted(self.frame, event)
        elif isinstance(event, Amended):
            self._amend(event)
        elif isinstance(event, Steered):
            if not self.is_repeat(event):
                self._steer(event)
                self.frame.steered.append(event.key)
        else:
            self._handle_trial(event)
        actions = self.frame.take_actions()
        if self.shutdown is None:  # the program of a custom search ends it
            self.shutdown = next((action for action in actions if isinstance(action, Shutdown)), None)
        return actions

    def progress(self) -> float:
        """How much of the search is done, in [0, 1]; exactly 1 once it has completed."""
        if self.shutdown is not None and not self.shutdown.failure and not self.shutdown.cancel:
            return 1.0
        share = self.method.progress(self.frame)
        return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0

    def trial(self, request_id: str) -> TrialView:
        """A trial as the search sees it.

        Raises:
            SearchError: The search has not asked for such a trial.
        """
        trial = self._trial(request_id)
        is_by_hand = request_id in self.frame.by_hand
        bracket, rung = (None, None) if is_by_hand else self.method.place(request_id)
        return TrialView(
            request_id=request_id,
            rung=rung,
            bracket=bracket,
            length=trial.length,
            completed=trial.completed,
            closed=trial.closed,
            stopped=trial.stopped,
            ended=trial.ended,
            exit_reason=trial.exit_reason,
        )

    def rungs(self, most: int | None = None) -> list[RungView]:
        """All rungs, bracket by bracket, with at most `most` of the trials of each, the best ones first.

        Empty for methods without rungs.
        """
        return self.method.rungs(most)

    @property
    def to_come(self) -> int:
        """Trials that it will ask for yet, unless it is ended before; 0 if that is not known."""
        return self.method.to_come

    def queue(self) -> list[QueuedEvent]:
        """The events that the program of a custom search has not answered; none for other methods."""
        return self.method.queue if isinstance(self.method, CustomSearch) else []

    def open_question(self) -> int | None:
        """Number of the :class:`Ask` that has no answer yet, if there is one."""
        return self.method.asked if isinstance(self.method, OptunaSearch) and self.method.is_asking else None

    def suggest_order(self, number: int, *, whole: bool = False) -> SuggestOrder | None:
        """What a sampler is sent for an :class:`Ask`; None if the question is not open any more.

        Args:
            number: Number of the question.
            whole: Whether to send the whole history instead of what is new.
        """
        return self.method.order(number, whole=whole) if isinstance(self.method, OptunaSearch) else None

    def shorten(self, request_ids: Iterable[str]) -> tuple[list[str], list[str]]:
        """Drop those of some trials that no decision can ask for again, and call the others by their place in a list.

        Args:
            request_ids: Trials that nothing but late messages will still be said of. These change nothing.

        Returns:
            The trials that were dropped, and that list; :meth:`restore` undoes the latter. Decisions stay as they are.
        """
        trials, by_hand, retired = self.frame.trials, self.frame.by_hand, self.frame.retired
        over = [key for key in request_ids if key in trials and trials[key].ended and key not in by_hand]
        gone = [key for key in over if self.method.may_retire(key, trials[key])]
        for key in gone:
            reason = trials.pop(key).exit_reason or ""
            retired[reason] = retired.get(reason, 0) + 1
        left = list(trials)
        self._rename({key: str(place) for place, key in enumerate(left)})
        return gone, left

    def restore(self, request_ids: Sequence[str]) -> None:
        """Call trials by their ids again."""
        self._rename({str(place): key for place, key in enumerate(request_ids)})

    def _rename(self, names: Mapping[str, str]) -> None:
        self.frame.trials = {names[key]: trial for key, trial in self.frame.trials.items()}
        self.method.rename(names)

    @property
    def can_shorten(self) -> bool:
        """Whether it can be shortened."""
        return self.method.can_rename

    def _is_retired(self, request_id: str) -> bool:
        return bool(self.frame.retired) and request_id not in self.frame.trials

    def _trial(self, request_id: str) -> TrialState:
        if self._is_retired(request_id):
            raise SearchError(_DONE)
        if request_id not in self.frame.trials:
            raise SearchError(f"the search has no trial with the request id {request_id!r}")
        return self.frame.trials[request_id]

    def _handle_trial(self, event: Any) -> None:
        if self._is_retired(event.request_id):
            return
        trial = self._trial(event.request_id)
        if trial.ended:
            return
        if isinstance(event, TrialClosed):
            self._close(event.request_id, trial)
        elif event.request_id in self.frame.by_hand:
            self._handle_by_hand(event, trial)
        elif trial.exit_reason is not None:
            return  # what it still says came from before its end
        elif isinstance(event, ProgressReported):
            self._progress(event, trial)
        elif isinstance(event, ValidationReported):
            if self.wants_validations:
                self.method.validated(self.frame, event.request_id, event.metrics)
        elif isinstance(event, OperationCompleted):
            self._complete(event, trial)
        elif isinstance(event, TrialExitedEarly):
            self._exit(event.request_id, trial, event.reason)

    def _steer(self, event: Steered) -> None:
        if isinstance(self.method, CustomSearch):
            raise SearchError("the program of a custom search steers its trials")
        if event.action == "add":
            self._add(event)
            return
        trial = self._trial(event.request_id)
        if trial.is_over or trial.stopped or (trial.closed and not trial.owes_result):
            raise SearchError(_DONE)
        if event.action == "stop":
            trial.exit_reason = ExitReason.USER_REQUESTED_STOP
            if event.request_id not in self.frame.by_hand:
                self.method.exited(self.frame, event.request_id, trial.exit_reason)
            self.frame.stop(event.request_id)
        elif event.request_id in self.frame.by_hand:
            raise SearchError("a trial that was added by hand trains to its full length: there is no rung to pass")
        else:
            self.method.lift(self.frame, event.request_id, to_top=event.action == "boost")

    def _add(self, event: Steered) -> None:
        """A trial with a point that is given: it trains to the full length, beside the method's own."""
        if not self.is_started:
            raise SearchError("the search has not begun yet")
        hparams = event.hparams or {}
        names = self.frame.space.keys()
        missing, unknown = sorted(names - hparams.keys()), sorted(hparams.keys() - names)
        if missing or unknown:
            wrong = [f"{name} is missing" for name in missing] + [f"{name} is unknown" for name in unknown]
            expected = ", ".join(sorted(names)) or "none"
            raise SearchError(f"hyperparameters: {', '.join(wrong)}: expected a value for each of {expected}")
        if event.request_id in self.frame.trials:
            raise SearchError(f"the search has a trial with the request id {event.request_id!r} already")
        self.frame.by_hand.append(event.request_id)
        create = Create(request_id=event.request_id, trial_seed=event.trial_seed, hparams=hparams)
        self.frame.add_trial(create)
        if self.frame.max_units is not None:
            self.frame.train_to(event.request_id, self.frame.max_units)
            self.frame.close(event.request_id)

    def _handle_by_hand(self, event: Any, trial: TrialState) -> None:
        """What a trial says that a user added: it has one length, and nothing is compared."""
        if trial.exit_reason is not None:
            return
        if isinstance(event, ProgressReported) and math.isfinite(event.progress):
            self.frame.note_progress(trial, max(event.progress, 0.0))
        elif isinstance(event, OperationCompleted) and event.length == trial.length and not trial.completed:
            trial.completed = True
        elif isinstance(event, TrialExitedEarly):
            trial.exit_reason = event.reason

    def _progress(self, event: ProgressReported, trial: TrialState) -> None:
        if math.isfinite(event.progress):
            progress = max(event.progress, 0.0)
            self.frame.note_progress(trial, progress if self.generation == "ops" else min(progress, 1.0))
            if self.method.wants_progress:
                self.method.progressed(self.frame, event.request_id, progress)

    def _amend(self, event: Amended) -> None:
        space = self.frame.space
        if event.hyperparameters is not None:
            self.frame.space = narrowed(space, event.hyperparameters)
        try:
            self.method.amend(self.frame, event)
        except SearchError:
            self.frame.space = space
            raise

    def _complete(self, event: OperationCompleted, trial: TrialState) -> None:
        if trial.has_reached(event.length):
            return
        if trial.length != event.length or trial.completed:
            given = "none" if trial.length is None or trial.completed else str(trial.length)
            raise SearchError(
                f"trial {event.request_id} reports that it has trained to {event.length}, "
                f"but the length it was given is {given}"
            )
        self.method.check_metric(event.metric)
        trial.completed = True
        self.method.completed(self.frame, event.request_id, event.metric)

    def _exit(self, request_id: str, trial: TrialState, reason: ExitReason) -> None:
        trial.exit_reason = reason
        if reason in INVALID_HP:
            self.frame.note_progress(trial, 0.0)
        self.method.exited(self.frame, request_id, reason)

    def _close(self, request_id: str, trial: TrialState) -> None:
        is_by_hand = request_id in self.frame.by_hand
        if self.generation == "ops" and trial.exit_reason is None and not trial.closed and not is_by_hand:
            # It ended while the search still counted on it.
            self._exit(request_id, trial, ExitReason.USER_REQUESTED_STOP)
        self.frame.end(trial)
        self.ended += 1
        if not is_by_hand:
            self.method.closed(self.frame, request_id)
        requested = self.frame.requested
        # a method may have asked a sampler for its next point: the search is not over then
        if self.ended == requested and self.method.ends_by_itself:
            self.shutdown = Shutdown(
                failure=self.frame.ended_by(ExitReason.ERRORED) >= requested,
                cancel=self.frame.ended_by(ExitReason.USER_CANCELED) >= requested,
            )
            self.frame.add(self.shutdown)


def generation_of(config: ExperimentConfig) -> Generation:
    """How the trials of a config are steered: by lengths if it gives one and no time, else by their reports."""
    searcher = config.searcher
    if isinstance(searcher, PbtSearcher | CustomSearcher):
        return "ops"
    has_length = getattr(searcher, "max_length", None) is not None
    return "ops" if has_length and getattr(searcher, "max_time", None) is None else "events"


def _max_units(config: ExperimentConfig) -> int | None:
    """Units that a trial trains at most; None if only the program of a custom search knows."""
    searcher = config.searcher
    if isinstance(searcher, CustomSearcher):
        return None
    if isinstance(searcher, PbtSearcher):
        return searcher.num_rounds * searcher.length_per_round.units
    if searcher.max_length is None:
        raise SearchError("the searcher has no max_length")
    return searcher.max_length.units


def _new_method(config: ExperimentConfig, generation: Generation, lends: bool) -> AnyMethod:
    searcher = config.searcher
    if isinstance(searcher, SingleSearcher):
        return SingleSearch(total=1, concurrency=1)
    if isinstance(searcher, RandomSearcher):
        return RandomSearch(total=searcher.max_trials, concurrency=searcher.max_concurrent_trials)
    if isinstance(searcher, GridSearcher):
        points = grid_size(config.hyperparameters)
        if points == 0:
            raise SearchError("a grid search needs hyperparameters, and a count for each range")
        return GridSearch(total=points, concurrency=searcher.max_concurrent_trials)
    if isinstance(searcher, PbtSearcher):
        return PopulationBasedTraining(
            metric=searcher.metric,
            smaller_is_better=searcher.smaller_is_better,
            population_size=searcher.population_size,
            num_rounds=searcher.num_rounds,
            length_per_round=searcher.length_per_round.units,
            truncate_fraction=searcher.replace_function.truncate_fraction,
            exploration=Exploration(
                resample_probability=searcher.explore_function.resample_probability,
                perturb_factor=searcher.explore_function.perturb_factor,
            ),
        )
    if isinstance(searcher, OptunaSearcher):
        settings = StudySettings(
            space=config.hyperparameters,
            sampler=searcher.sampler,
            options=searcher.sampler_options,
            seed=config.reproducibility.experiment_seed,
            smaller_is_better=searcher.smaller_is_better,
        )
        return OptunaSearch(
            metric=searcher.metric,
            settings=settings,
            name=settings.name(),
            total=searcher.max_trials,
            concurrency=searcher.max_concurrent_trials,
        )
    if isinstance(searcher, CustomSearcher):
        return CustomSearch()
    fields: dict[str, Any] = {
        "metric": searcher.metric,
        "time_metric": searcher.time_metric if generation == "events" else None,
        "brackets": new_brackets(config, generation),
        "lends": lends,
    }
    return AsyncHalving(**fields) if isinstance(searcher, AsyncHalvingSearcher) else AdaptiveAsha(**fields)


def new_brackets(config: ExperimentConfig, generation: Generation) -> list[AnyBracket]:
    """The empty brackets of a halving searcher.

    Raises:
        SearchError: It has neither a length nor a time.
    """
    searcher = config.searcher
    if not isinstance(searcher, AsyncHalvingSearcher | AdaptiveAshaSearcher):
        raise SearchError(f"the {searcher.name!r} searcher has no brackets")
    length = _max_units(config) if generation == "ops" else searcher.max_time
    if length is None or (generation == "events" and searcher.time_metric is None):
        raise SearchError(f"the `{searcher.name}` searcher requires `max_time` and `time_metric` to be set")
    kind: BracketKind = "stopping" if generation == "events" else "stop_once" if searcher.stop_once else "promotion"
    if isinstance(searcher, AsyncHalvingSearcher):
        plans = [(searcher.num_rungs, searcher.max_trials, searcher.max_concurrent_trials)]
    else:
        plans = plan_brackets(
            mode=searcher.mode,
            max_length=length,
            max_trials=searcher.max_trials,
            divisor=searcher.divisor,
            max_rungs=searcher.max_rungs,
            concurrency=searcher.max_concurrent_trials,
            bracket_rungs=searcher.bracket_rungs,
        )
    return [
        new_bracket(
            kind,
            number=number,
            num_rungs=rungs,
            max_length=length,
            divisor=searcher.divisor,
            max_trials=trials,
            concurrency=concurrency,
            smaller_is_better=searcher.smaller_is_better,
        )
        for number, (rungs, trials, concurrency) in enumerate(plans)
    ]
