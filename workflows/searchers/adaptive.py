"""Adaptive ASHA: several brackets of asynchronous halving, from impatient to patient. Source: spec searchers.md §8."""

from fractions import Fraction
from typing import Literal, NamedTuple

from workflows.searchers.async_halving import Brackets
from workflows.searchers.halving import Number, exact, floor_log

Mode = Literal["aggressive", "standard", "conservative"]


class BracketPlan(NamedTuple):
    """Size of a bracket: its rungs, its trials, and how many of them run at the same time."""

    rungs: int
    trials: int
    concurrency: int


class AdaptiveAsha(Brackets):
    """The searcher ``adaptive_asha``."""

    kind: Literal["adaptive_asha"] = "adaptive_asha"

    def share_trials(self, total: int) -> list[int]:
        """By the same weights as at the start; what a bracket has too many by them, the last ones do without."""
        now = [bracket.max_trials for bracket in self.brackets]
        planned = bracket_trials(total, self.brackets[0].divisor, [len(bracket.rungs) for bracket in self.brackets])
        shares = [max(pair) for pair in zip(now, planned, strict=True)]
        too_many = sum(shares) - max(total, sum(now))
        for number in reversed(range(len(shares))):
            cut = min(too_many, shares[number] - now[number])
            shares[number] -= cut
            too_many -= cut
        return shares

    def share_places(self, total: int) -> list[int]:
        """Evenly, as at the start."""
        return bracket_concurrency(total, self.brackets[0].divisor, [b.max_trials for b in self.brackets])


def plan_brackets(
    *,
    mode: Mode,
    max_length: int,
    max_trials: int,
    divisor: Number,
    max_rungs: int,
    concurrency: int,
    bracket_rungs: list[int],
) -> list[BracketPlan]:
    """The brackets, most rungs first. With `bracket_rungs` the mode is not asked."""
    rungs = sorted(bracket_rungs or _rungs_by_mode(mode, max_length, max_trials, divisor, max_rungs), reverse=True)
    trials = bracket_trials(max_trials, divisor, rungs)
    return [BracketPlan(*p) for p in zip(rungs, trials, bracket_concurrency(concurrency, divisor, trials), strict=True)]


def _rungs_by_mode(mode: Mode, max_length: int, max_trials: int, divisor: Number, max_rungs: int) -> list[int]:
    # max_length 0 is allowed as a plain number; there is nothing to divide then.
    most = min(max_rungs, floor_log(max(max_length, 1), divisor) + 1, floor_log(max_trials, divisor) + 1)
    if mode == "aggressive":
        return [most]
    return list(range((most - 1) // 2 + 1 if mode == "standard" else 1, most + 1))


def bracket_trials(max_trials: int, divisor: Number, rungs: list[int]) -> list[int]:
    """Trials of each bracket: about the same amount of training each, at least one trial, the rest to the first."""
    weights = [exact(divisor) ** (r - 1) / r for r in rungs]
    total = sum(weights, Fraction(0))
    trials = [max(int(weight / total * max_trials), 1) for weight in weights]
    trials[0] += max(max_trials - sum(trials), 0)
    return trials


def bracket_concurrency(concurrency: int, divisor: Number, trials: list[int]) -> list[int]:
    """Trials of each bracket that run at the same time; 0 stands for as many as make sense."""
    if concurrency == 0:
        return [max(trials[-1], int(divisor))] * len(trials)
    each, rest = divmod(max(concurrency, len(trials)), len(trials))
    return [each + (1 if number < rest else 0) for number in range(len(trials))]
