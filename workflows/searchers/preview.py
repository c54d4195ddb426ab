"""What a search will do if all goes as planned, without running it. Source: spec searchers.md §8, "Preview"."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from workflows.config import ExperimentConfig
from workflows.searchers.async_halving import Brackets
from workflows.searchers.halving import exact
from workflows.searchers.pbt import PopulationBasedTraining
from workflows.searchers.random import IndependentTrials
from workflows.searchers.search import Search
from workflows.searchers.values import SearchError


@dataclass(frozen=True)
class TrialGroup:
    """Trials that train equally long.

    Attributes:
        count: Number of trials.
        length: Where they stop, in units of the searcher's length or time; None if their code alone decides.
    """

    count: int
    length: int | None


def preview_search(config: ExperimentConfig) -> list[TrialGroup]:
    """How many trials train how far in an ideal run, the shortest first.

    In population based training which members are replaced is not known; it is shown as if always the same ones were.

    Raises:
        SearchError: It cannot be known, because a program of the user's decides.
    """
    search = Search.new(config)
    method = search.method
    if isinstance(method, IndependentTrials):
        return [TrialGroup(method.total, search.frame.max_units)]
    if isinstance(method, Brackets):
        return _groups(_of_brackets(method))
    if isinstance(method, PopulationBasedTraining):
        return _groups(_of_population(method))
    raise SearchError(f"what a {config.searcher.name} search will do cannot be known: its own program decides")


def total_length(groups: Iterable[TrialGroup]) -> int | None:
    """All training of a preview together, in the unit of its lengths; None if it is not known."""
    total = 0
    for group in groups:
        if group.length is None:
            return None
        total += group.count * group.length
    return total


def _groups(counts: Counter[int]) -> list[TrialGroup]:
    return [TrialGroup(counts[length], length) for length in sorted(counts) if counts[length] > 0]


def _of_brackets(method: Brackets) -> Counter[int]:
    counts: Counter[int] = Counter()
    for bracket in method.brackets:
        left = bracket.max_trials
        for number, rung in enumerate(bracket.rungs):
            on = 0 if number == bracket.top else max(bracket.survivors(left), 1)
            counts[rung.length] += left - on
            left = on
    return counts


def _of_population(method: PopulationBasedTraining) -> Counter[int]:
    size, rounds, length = method.population_size, method.num_rounds, method.length_per_round
    replaced = min(max(int(exact(method.truncate_fraction) * size), 1), size - 1)
    counts: Counter[int] = Counter()
    counts[rounds * length] += size - replaced
    counts[length] += replaced * rounds
    return counts
