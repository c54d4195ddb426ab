"""The contract of a search method, and the state that all methods share.

A method is a model that holds its own state and changes it at each event; what it wants done it puts on the
:class:`Frame`, which draws random numbers and keeps the book of trials. It sees neither time nor the cluster.
Source: spec searchers.md §1.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidatorFunctionWrapHandler,
    field_serializer,
    field_validator,
    model_serializer,
)

from workflows.config import Hyperparameters
from workflows.searchers.decisions import Verdict
from workflows.searchers.messages import (
    Action,
    Amended,
    Close,
    Create,
    ExitReason,
    OperationsPosted,
    Stop,
    Suggested,
    TrainTo,
)
from workflows.searchers.mt19937 import MT19937
from workflows.searchers.space import sample
from workflows.searchers.values import MetricValue, SearchError

T = TypeVar("T")

Generation = Literal["ops", "events"]

INVALID_HP = (ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP)
MANY = 1000
"""From this number on, what there is of each trial is written as columns: shorter, and quicker to write and to read."""

WORST = math.nan
"""Metric of a trial that failed: behind every number."""


def by_kind(items: Iterable[T], key: Callable[[T], Hashable]) -> tuple[list[T], list[int]]:
    """The first item of each kind, and for each item the place of that one; `key` is the same for items of a kind."""
    kinds: dict[Hashable, int] = {}
    firsts: list[T] = []
    kind_of: list[int] = []
    for item in items:
        kind = kinds.setdefault(key(item), len(firsts))
        if kind == len(firsts):
            firsts.append(item)
        kind_of.append(kind)
    return firsts, kind_of


class State(BaseModel):
    """Base of everything that is part of a search's state."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class TrialView(BaseModel):
    """A trial as the search sees it.

    Attributes:
        request_id: The trial's id in the search.
        rung: The rung that its next result counts for; None where there are no rungs.
        bracket: The bracket it belongs to; None where there are no rungs.
        length: The length it was last told to train to; None in the events generation.
        completed: Whether it has reached that length.
        closed: Whether no further length will come. If completed and not closed, it waits for others' results.
        stopped: Whether it was asked to stop.
        ended: Whether the search knows that it is over.
        exit_reason: Why it ended early, if it did.
    """

    model_config = ConfigDict(frozen=True)

    request_id: str
    rung: int | None = None
    bracket: int | None = None
    length: int | None = None
    completed: bool = False
    closed: bool = False
    stopped: bool = False
    ended: bool = False
    exit_reason: ExitReason | None = None


class RungView(BaseModel):
    """A rung as the search sees it.

    Attributes:
        bracket: Number of its bracket, from 0.
        rung: Number within the bracket, from 0.
        length: Where trials are compared.
        results: How many trials have one here.
        entries: (request id, metric, whether it went on to the next rung), best first: of all of them, or of as many as
            were asked for. NaN is the metric of a trial that failed.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    bracket: int
    rung: int
    length: int
    results: int
    entries: list[tuple[str, MetricValue, bool]]


@dataclass(slots=True)
class TrialState:
    """What the frame knows about one trial; other names are those of :class:`TrialView`.

    A dataclass, because there are as many as trials and a model takes several times the memory.

    Attributes:
        progress: What it last reported; 0 once it is over.
        earlier_lengths: The lengths that it has reached before the present one; none once it is over.
    """

    progress: float = 0.0
    length: int | None = None
    completed: bool = False
    earlier_lengths: list[int] = field(default_factory=list[int])
    closed: bool = False
    stopped: bool = False
    exit_reason: ExitReason | None = None
    ended: bool = False

    @model_serializer(mode="wrap")
    def _only_changes(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Most fields of most trials are at their defaults.
        return {key: value for key, value in handler(self).items() if value != _NEW_TRIAL[key]}

    def key(self) -> Hashable:
        """The same for all trials that are in the same state."""
        return (
            self.progress, self.length, self.completed, tuple(self.earlier_lengths), self.closed, self.stopped,
            self.exit_reason, self.ended,
        )  # fmt: skip

    def another(self) -> "TrialState":
        """A trial in the same state."""
        return TrialState(
            self.progress, self.length, self.completed, list(self.earlier_lengths), self.closed, self.stopped,
            self.exit_reason, self.ended,
        )  # fmt: skip

    @property
    def is_over(self) -> bool:
        """Whether nothing the trial still reports can matter."""
        return self.ended or self.exit_reason is not None

    @property
    def owes_result(self) -> bool:
        """Whether it was given a length that it has not reached yet."""
        return self.length is not None and not self.completed

    def has_reached(self, length: int) -> bool:
        """Whether it has completed an operation of that very length."""
        return (self.completed and self.length == length) or length in self.earlier_lengths


_NEW_TRIAL = asdict(TrialState())


class TrialColumns(State):
    """Many trials, by their states: there are few of these."""

    ids: list[str]
    states: list[TrialState]
    state_of: list[int]


class Inherited(State):
    """A trial of the experiment that this one was forked from, whose results count here.

    Attributes:
        request_id: Its request id there.
        hparams: Its hyperparameters.
    """

    request_id: str
    hparams: dict[str, Any]


class Frame(State):
    """The state outside of the method, and the method's hands.

    Attributes:
        generation: How trials are steered.
        max_units: ``max_length`` without its unit; None in the events generation.
        space: The hyperparameters that trials are drawn from.
        rng: The experiment's one generator.
        trials: Every trial asked for, in order of creation.
        open_progress: Sum of the progress of all trials that are not over.
        inherited: Trials of a forked experiment that no trial of this one has taken yet, oldest first.
        by_hand: Trials that users added. The method does not know them: it neither compares nor counts them.
        steered: Keys of what users did by hand.
        retired: Numbers of trials that are over and are not among `trials` any more, by their exit reasons, "" without
            one.
    """

    generation: Generation
    max_units: int | None
    space: Hyperparameters
    rng: MT19937
    trials: dict[str, TrialState] = {}
    open_progress: float = 0.0
    inherited: list[Inherited] = []
    by_hand: list[str] = []
    steered: list[str] = []
    retired: dict[str, int] = {}

    @field_serializer("trials", mode="wrap")
    def _write_columns(self, trials: dict[str, TrialState], handler: SerializerFunctionWrapHandler) -> Any:
        if len(trials) < MANY:
            return handler(trials)
        states, state_of = by_kind(trials.values(), TrialState.key)
        return TrialColumns(ids=list(trials), states=states, state_of=state_of).model_dump(mode="json")

    @field_validator("trials", mode="wrap")
    @classmethod
    def _read_columns(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> dict[str, TrialState]:
        if not (isinstance(value, dict) and "state_of" in value):
            return handler(value)
        columns = TrialColumns.model_validate(value)
        states = [columns.states[number].another() for number in columns.state_of]
        return dict(zip(columns.ids, states, strict=True))

    _actions: list[Action] = PrivateAttr(default_factory=list[Action])
    _verdicts: list[Verdict] = PrivateAttr(default_factory=list[Verdict])

    def create(self, hparams: dict[str, Any] | None = None, *, parent: str | None = None) -> str:
        """Ask for a trial and return its request id.

        Args:
            hparams: Its point; without it the point is drawn, or that of the next inherited trial is taken.
            parent: The trial whose newest checkpoint it starts from.
        """
        # The order of the draws is part of the contract: values, then id, then seed. An inherited trial draws too, so
        # that a fork that changes nothing draws what the first search drew.
        values = sample(self.space, self.rng) if hparams is None else hparams
        request_id = self.rng.uuid4()
        seed = self.rng.below(2**31)
        heir = self._inherit(hparams)
        self.add_trial(
            Create(
                request_id=request_id,
                trial_seed=seed,
                hparams=values if heir is None else heir.hparams,
                parent=parent,
                inherits=None if heir is None else heir.request_id,
            )
        )
        return request_id

    def add_trial(self, action: Create) -> None:
        """Ask for a trial whose id was not drawn here."""
        self.trials[action.request_id] = TrialState()
        self._actions.append(action)

    @property
    def requested(self) -> int:
        """Trials asked for in all."""
        return len(self.trials) + sum(self.retired.values())

    def ended_by(self, reason: ExitReason) -> int:
        """Trials that ended early for a reason."""
        return self.retired.get(reason, 0) + sum(trial.exit_reason is reason for trial in self.trials.values())

    def drawn(self) -> Iterator[tuple[str, TrialState]]:
        """The trials that the method asked for."""
        return ((key, trial) for key, trial in self.trials.items() if key not in self.by_hand)

    def _inherit(self, hparams: dict[str, Any] | None) -> Inherited | None:
        for place, candidate in enumerate(self.inherited):
            if hparams is None or candidate.hparams == hparams:
                return self.inherited.pop(place)
        return None

    def train_to(self, request_id: str, length: int) -> None:
        """Give a trial a length to train to."""
        trial = self.trials[request_id]
        if trial.length is not None and trial.completed:
            trial.earlier_lengths.append(trial.length)
        trial.length, trial.completed = length, False
        self._actions.append(TrainTo(request_id=request_id, length=length))

    def close(self, request_id: str) -> None:
        """Tell a trial, once, that no further length will come."""
        if not self.trials[request_id].closed:
            self.trials[request_id].closed = True
            self._actions.append(Close(request_id=request_id))

    def stop(self, request_id: str) -> None:
        """Ask a trial, once, to stop."""
        if not self.trials[request_id].stopped:
            self.trials[request_id].stopped = True
            self._actions.append(Stop(request_id=request_id))

    def note_progress(self, trial: TrialState, progress: float) -> None:
        """Keep how far a trial is, at most its whole length."""
        progress = progress if self.max_units is None else min(progress, float(self.max_units))
        self.open_progress += progress - trial.progress
        trial.progress = progress

    def end(self, trial: TrialState) -> None:
        """Note that a trial is over; what nobody will ask for again is dropped."""
        trial.ended = True
        trial.earlier_lengths = []
        self.note_progress(trial, 0.0)

    def add(self, action: Action) -> None:
        """Put an action that concerns no single trial on the list."""
        self._actions.append(action)

    def judge(self, verdict: Verdict) -> None:
        """Note a comparison and what followed from it."""
        self._verdicts.append(verdict)

    def take_actions(self) -> list[Action]:
        """The actions since the last call, in order."""
        actions, self._actions = self._actions, []
        return actions

    def take_verdicts(self) -> list[Verdict]:
        """The comparisons since the last call, in order."""
        verdicts, self._verdicts = self._verdicts, []
        return verdicts


class Method(State):
    """A search method. Each call may put actions on the frame; none may fail half-way.

    The frame is up to date when a method is called: a completed operation is marked, an exit reason is set.
    Subclasses add ``kind``.
    """

    @property
    def ends_by_itself(self) -> bool:
        """Whether the search is over when every trial that it asked for is; else its end has to be requested."""
        return True

    @property
    def wants_progress(self) -> bool:
        """Whether a trial's progress can lead to a decision."""
        return False

    @property
    def to_come(self) -> int:
        """Trials that it will ask for yet, unless it is ended before; 0 if that is not known."""
        return 0

    def wants_validations(self, frame: Frame) -> bool:
        """Whether validation reports can lead to a decision."""
        return False

    def start(self, frame: Frame) -> None:
        """Create the first trials."""
        raise NotImplementedError

    def validated(self, frame: Frame, request_id: str, metrics: dict[str, Any]) -> None:
        """A trial that is still running reported a validation (events generation).

        Raises:
            SearchError: A metric is missing or not a number; nothing was changed.
        """

    def check_metric(self, metric: Any) -> None:
        """Refuse a metric of a completed operation before anything is changed.

        Raises:
            SearchError: It is not a number.
        """

    def completed(self, frame: Frame, request_id: str, metric: Any) -> None:
        """A trial has reached its length (ops generation); `metric` has passed :meth:`check_metric`."""

    def progressed(self, frame: Frame, request_id: str, progress: float) -> None:
        """A trial that is still running says how far it is; only called if the method :attr:`wants_progress`."""

    def exited(self, frame: Frame, request_id: str, reason: ExitReason) -> None:
        """A trial ended early."""

    def suggested(self, frame: Frame, event: Suggested) -> None:
        """The answer to an :class:`Ask`.

        Raises:
            SearchError: Nobody asked.
        """
        raise SearchError("this search asks nobody for its points")

    def posted(self, frame: Frame, event: OperationsPosted) -> None:
        """The program that runs a custom search decided.

        Raises:
            SearchError: One of the operations cannot be; nothing was changed.
        """
        raise SearchError("operations can be posted to an experiment with the searcher 'custom' only")

    def amend(self, frame: Frame, event: Amended) -> None:
        """Take a change by the user; the space is on the frame already.

        Raises:
            SearchError: The method cannot be changed so; nothing was changed.
        """
        raise SearchError("this searcher cannot be edited while it runs")

    def lift(self, frame: Frame, request_id: str, *, to_top: bool) -> None:
        """Have a trial pass the next rung whatever its result, or all of them.

        Raises:
            SearchError: There is no rung for it to pass; nothing was changed.
        """
        raise SearchError("this searcher has no rungs: nothing can be promoted")

    def closed(self, frame: Frame, request_id: str) -> None:
        """A trial is over."""

    @property
    def can_rename(self) -> bool:
        """Whether there is a :meth:`rename`."""
        return False

    def may_retire(self, request_id: str, trial: TrialState) -> bool:
        """Whether no decision can ask for a trial again, which is over; only asked if it :attr:`can_rename`."""
        return True

    def rename(self, names: Mapping[str, str]) -> None:
        """Call trials by other ids. Those without one are retired: what is left of them are results of nobody."""

    def progress(self, frame: Frame) -> float:
        """How much of the search is done; the caller clamps it to [0, 1]."""
        raise NotImplementedError

    def place(self, request_id: str) -> tuple[int | None, int | None]:
        """(bracket, rung) of a trial."""
        return None, None

    def rungs(self, most: int | None = None) -> list[RungView]:
        """All rungs, bracket by bracket, with at most `most` of the trials of each."""
        return []


def check_raise(field: str, wanted: int | None, now: float) -> None:
    """Refuse a change that makes something smaller; None is no change.

    Raises:
        SearchError: It does.
    """
    if wanted is not None and wanted < now:
        raise SearchError(f"{field} must be at least {now}, as it is now: it can only be raised, but is {wanted}")


def check_length(frame: Frame, wanted: int | None, now: int) -> None:
    """Refuse a length that is shorter than it was, or that the search does not hand out; None is no change.

    Raises:
        SearchError: It is.
    """
    if wanted is not None and frame.max_units is None:
        raise SearchError(
            f"max_length cannot become {wanted}: the config gives none, so the training code decides how long it trains"
        )
    check_raise("max_length", wanted, now)
