"""Population based training: after each round bad members go on from the checkpoints of good ones, a bit changed.

Jaderberg et al., "Population Based Training of Neural Networks", 2017: the population P is `population_size`, a member
is ready after each `length_per_round`, exploit is truncation selection (`truncate_fraction`), explore is perturb and
resample (`perturb_factor`, `resample_probability`). A member that exploits is a new trial here: its request id, its
hyperparameters and its metrics are its own.
"""

import math
from typing import Any, Literal, cast

from workflows.config import CategoricalHp, ConstHp, Hyperparameters, IntHp, LeafHp
from workflows.searchers.base import INVALID_HP, WORST, Frame, Method, RungView, State, check_length
from workflows.searchers.decisions import Outcome, Verdict
from workflows.searchers.halving import Number, exact
from workflows.searchers.messages import Amended, ExitReason
from workflows.searchers.mt19937 import MT19937
from workflows.searchers.space import sample
from workflows.searchers.study import bounds
from workflows.searchers.values import MetricValue, SearchError, parse_metric, sort_key

_ABSENT = object()
"""No value at all; None is one that a choice may have."""


class Member(State):
    """A trial that is one of the population.

    Attributes:
        hparams: Its hyperparameters.
        parent: The trial whose checkpoint it started from.
        source: Hyperparameters of that trial.
        metric: Its result in the present round; None if it has none yet.
        failed: Whether it has ended in error: it waits to be replaced.
    """

    hparams: dict[str, Any]
    parent: str | None = None
    source: dict[str, Any] = {}
    metric: MetricValue | None = None
    failed: bool = False


class Result(State):
    """A member's result in a round that is over, and whether it went on."""

    request_id: str
    metric: MetricValue
    goes_on: bool


class Exploration(State):
    """How a copy's hyperparameters differ from its parent's.

    Attributes:
        resample_probability: Share of the hyperparameters that is drawn anew.
        perturb_factor: The others are multiplied by 1 plus or minus this.
    """

    resample_probability: Number
    perturb_factor: Number

    def explore(self, space: Hyperparameters, hparams: dict[str, Any], rng: MT19937) -> dict[str, Any]:
        """A point of the space near another one, names in byte order."""
        result: dict[str, Any] = {}
        for name in sorted(space):
            leaf, value = space[name], hparams.get(name, _ABSENT)
            if isinstance(leaf, dict):
                nested = cast(dict[str, Any], value) if isinstance(value, dict) else {}
                result[name] = self.explore(leaf, nested, rng)
            else:
                result[name] = self._explore_leaf(leaf, value, rng)
        return result

    def _explore_leaf(self, leaf: LeafHp, value: Any, rng: MT19937) -> Any:
        if isinstance(leaf, ConstHp):
            return leaf.val
        is_choice = isinstance(leaf, CategoricalHp)
        is_usable = value in leaf.vals if is_choice else _is_number(value)
        # A value that the parent has not, or no longer: the space was narrowed, or the parent comes from elsewhere.
        if rng.unit() < self.resample_probability or not is_usable:
            return sample({"": leaf}, rng)[""]
        if is_choice:
            return value
        low, high = bounds(leaf)
        factor = 1 + self.perturb_factor if rng.below(2) else 1 - self.perturb_factor
        moved = min(max(value * factor, low), high)
        if not isinstance(leaf, IntHp):
            return float(moved)
        rounded = math.floor(abs(moved) + 0.5)
        # A float rounds large numbers, out of the range as well.
        return min(max(rounded if moved >= 0 else -rounded, leaf.minval), leaf.maxval)


class PopulationBasedTraining(Method):
    """Members that train round by round; after each but the last the worst are replaced by copies of the best.

    A round is over when every member that still runs has its result. Members that failed count as the worst. Those
    with invalid hyperparameters are replaced at once, and do not count. Those that ended otherwise are gone: the
    population is smaller then.

    Attributes:
        metric: Name of the metric that is compared.
        smaller_is_better: Its direction.
        population_size: Members at the start.
        num_rounds: Rounds in all.
        length_per_round: Units that a member trains in a round.
        truncate_fraction: Share of the members that is replaced after a round, rounded down, at least one.
        exploration: How copies differ.
        round: The present round, from 0.
        members: Those that have not been replaced, in order of creation.
        round_of: For each trial, the round that its last result counts for.
        results: Of each round that is over, best first.
    """

    kind: Literal["pbt"] = "pbt"
    metric: str
    smaller_is_better: bool
    population_size: int
    num_rounds: int
    length_per_round: int
    truncate_fraction: Number
    exploration: Exploration
    round: int = 0
    members: dict[str, Member] = {}
    round_of: dict[str, int] = {}
    results: list[list[Result]] = []

    def start(self, frame: Frame) -> None:
        """Begin with drawn members."""
        for _ in range(self.population_size):
            self._begin(frame, self._draw(frame))

    def check_metric(self, metric: Any) -> None:
        """It must be a number, or a word for NaN or infinity."""
        parse_metric(metric, self.metric)

    def completed(self, frame: Frame, request_id: str, metric: Any) -> None:
        """A member has its result; the last one ends the round."""
        if request_id in self.members:
            self.members[request_id].metric = parse_metric(metric, self.metric)
            self._settle(frame)

    def exited(self, frame: Frame, request_id: str, reason: ExitReason) -> None:
        """A member is gone; others may have waited for it."""
        member = self.members.get(request_id)
        if member is None:
            return
        if reason in INVALID_HP:
            del self.members[request_id]
            self._judge(frame, request_id, Outcome.INVALID)
            if member.parent is None:
                self._begin(frame, self._draw(frame))
            else:
                self._copy(frame, member.parent, member.source)
        elif reason is ExitReason.ERRORED:
            member.failed, member.metric = True, WORST
            self._judge(frame, request_id, Outcome.FAILED, metric=WORST)
        else:
            del self.members[request_id]
        self._settle(frame)

    def amend(self, frame: Frame, event: Amended) -> None:
        """More rounds: `max_length` is that of all rounds together. Copies are made in the space as it is then."""
        if event.max_trials is not None or event.max_concurrent_trials is not None:
            raise SearchError(
                "a population has no max_trials and no max_concurrent_trials: "
                "its max_length (all rounds together) and its hyperparameters can be edited"
            )
        if event.max_length is None:
            return
        check_length(frame, event.max_length, self.num_rounds * self.length_per_round)
        if event.max_length % self.length_per_round:
            raise SearchError(
                f"max_length must be a multiple of length_per_round, which is {self.length_per_round}, "
                f"but is {event.max_length}"
            )
        if len(self.results) == self.num_rounds:
            raise SearchError("the last round is over already")
        self.num_rounds = event.max_length // self.length_per_round
        frame.max_units = event.max_length

    def progress(self, frame: Frame) -> float:
        """Rounds that are over, and the mean of the members in the present one."""
        shares = [self._share(frame, request_id, member) for request_id, member in self.members.items()]
        return (len(self.results) + (sum(shares) / len(shares) if shares else 0.0)) / self.num_rounds

    def place(self, request_id: str) -> tuple[int | None, int | None]:
        """(0, round) of a trial: there is one bracket."""
        return 0, self.round_of[request_id]

    def rungs(self, most: int | None = None) -> list[RungView]:
        """The rounds that are over, with at most `most` of the trials of each."""
        return [
            RungView(
                bracket=0,
                rung=number,
                length=(number + 1) * self.length_per_round,
                results=len(results),
                entries=[(result.request_id, result.metric, result.goes_on) for result in results[:most]],
            )
            for number, results in enumerate(self.results)
        ]

    def leaving(self, members: int) -> int:
        """How many out of `members` are replaced after a round, if none fails; never all of them."""
        return min(max(int(exact(self.truncate_fraction) * members), 1), members - 1)

    def _share(self, frame: Frame, request_id: str, member: Member) -> float:
        if member.metric is not None:
            return 1.0
        units = frame.trials[request_id].progress - self.round * self.length_per_round
        return min(max(units / self.length_per_round, 0.0), 1.0)

    def _draw(self, frame: Frame) -> dict[str, Any]:
        """A point drawn at random, or that of the next inherited trial; both draw the same."""
        hparams = sample(frame.space, frame.rng)
        return frame.inherited[0].hparams if frame.inherited else hparams

    def _begin(
        self, frame: Frame, hparams: dict[str, Any], *, parent: str | None = None, source: dict[str, Any] | None = None
    ) -> None:
        request_id = frame.create(hparams, parent=parent)
        self.members[request_id] = Member(hparams=hparams, parent=parent, source=source or {})
        self.round_of[request_id] = self.round
        # A copy goes on counting where its parent was: its code resumes from that checkpoint as after a pause.
        frame.train_to(request_id, (self.round + 1) * self.length_per_round)

    def _copy(self, frame: Frame, parent: str, source: dict[str, Any]) -> None:
        self._begin(frame, self.exploration.explore(frame.space, source, frame.rng), parent=parent, source=source)

    def _settle(self, frame: Frame) -> None:
        """End the round, if all members that still run have their results."""
        if any(member.metric is None for member in self.members.values()):
            return
        if all(member.failed for member in self.members.values()):
            self.members = {}  # nobody is left to copy
            return
        ranked = sorted(self.members, key=self._key)
        if self.round == self.num_rounds - 1:
            self._finish(frame, ranked)
        else:
            self._exploit(frame, ranked)

    def _key(self, request_id: str) -> tuple[bool, tuple[int, float]]:
        member = self.members[request_id]
        return member.failed, sort_key(_known(member.metric), smaller_is_better=self.smaller_is_better)

    def _finish(self, frame: Frame, ranked: list[str]) -> None:
        for place, request_id in enumerate(ranked, 1):
            if not self.members[request_id].failed:
                self._judge(frame, request_id, Outcome.FINISHED, place=place, results=len(ranked))
                frame.close(request_id)
        self._keep_results(ranked, set())
        self.members = {}

    def _exploit(self, frame: Frame, ranked: list[str]) -> None:
        leaving = self.leaving(len(ranked))
        sound = [request_id for request_id in ranked if not self.members[request_id].failed]
        survivors = sound[: len(ranked) - leaving]
        # Whose run blew up is no example.
        parents = [r for r in survivors[: max(leaving, 1)] if math.isfinite(_known(self.members[r].metric))]
        if not parents:
            survivors = sound
        going_on = set(survivors)
        heirs = {r: parents[frame.rng.below(len(parents))] for r in ranked if r not in going_on} if parents else {}
        for place, request_id in enumerate(ranked, 1):
            if request_id in going_on or request_id in heirs:
                self._judge(
                    frame,
                    request_id,
                    Outcome.GOES_ON if request_id in going_on else Outcome.REPLACED,
                    place=place,
                    results=len(ranked),
                    keep=len(survivors),
                    threshold=self.members[survivors[-1]].metric,
                    because_of=heirs.get(request_id),
                )
        self._keep_results(ranked, going_on)
        before, self.members = self.members, {r: m for r, m in self.members.items() if r in going_on}
        self.round += 1
        for request_id, member in self.members.items():
            member.metric = None
            self.round_of[request_id] = self.round
            frame.train_to(request_id, (self.round + 1) * self.length_per_round)
        for heir, parent in heirs.items():
            if not before[heir].failed:
                frame.close(heir)
            self._copy(frame, parent, before[parent].hparams)

    def _keep_results(self, ranked: list[str], going_on: set[str]) -> None:
        self.results.append(
            [Result(request_id=r, metric=_known(self.members[r].metric), goes_on=r in going_on) for r in ranked]
        )

    def _judge(self, frame: Frame, request_id: str, outcome: Outcome, **more: Any) -> None:
        member = self.members.get(request_id)
        fields: dict[str, Any] = {
            "request_id": request_id,
            "outcome": outcome,
            "bracket": 0,
            "rung": self.round,
            "length": (self.round + 1) * self.length_per_round,
            "metric": None if member is None else member.metric,
        }
        frame.judge(Verdict(**(fields | more)))


def _known(metric: float | None) -> float:
    return WORST if metric is None else metric


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
