"""A search that is followed through its record: what a page shows of it, kept up to date decision by decision."""

from __future__ import annotations

from collections.abc import Iterable

from workflows.searchers.decisions import Decision
from workflows.searchers.explain import Summary
from workflows.searchers.replay import derive
from workflows.searchers.search import Search
from workflows.searchers.standings import Comparisons


class Followed:
    """A search as it is after some of its decisions. It can be pickled.

    Args:
        search: As it was before the first one.

    Attributes:
        search: As it is now.
        count: How many decisions it has made.
        summary: What they add up to.
        comparisons: How its trials compared.
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self.count = 0
        self.summary = Summary()
        self.comparisons = Comparisons()

    def follow(self, decisions: Iterable[Decision]) -> None:
        """Take the next ones, in order."""
        for decision in decisions:
            derive(self.search, decision)
            self.summary.add(decision)
            self.comparisons.add(decision)
            self.count += 1
