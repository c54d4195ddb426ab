"""Searches that are looked at, followed by this process: a page of a long one reads only what was decided since.

To follow a search costs what it took to make its decisions: a second for some ten thousand. So it is done once, and
for all who look. On the way the search is kept at some of its decisions, from which a look at the past begins.
"""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager

from sqlalchemy import select
from sqlalchemy.orm import Session

from database.models import SearchDecision, Trial
from workflows.searchers import Decision, Search
from workflows.searchers.explain import TrialName
from workflows.searchers.following import Followed

#: Searches that are followed at once, and how many decisions these may have; the one looked at last may have any.
#: 30,000 decisions about 10,000 trials take some 80 MiB.
_MOST, _MOST_DECISIONS = 8, 100_000
#: Places at which each is kept, the first one after so many decisions.
_MOST_KEPT, _FIRST_KEPT = 8, 1000
#: Trials whose ids are asked for by name.
_FEW = 500
_READ_AT_ONCE = 2000


class Numbers(dict[str, int]):
    """The ids of an experiment's trials by their request ids, as they are asked for."""

    def __init__(self, experiment_id: int) -> None:
        super().__init__()
        self._experiment_id = experiment_id

    def read(self, session: Session, request_ids: Iterable[str]) -> None:
        """Read those that are not known; all of the experiment's, if these are many."""
        wanted = [each for each in request_ids if each not in self]
        if not wanted:
            return
        statement = select(Trial.request_id, Trial.id).where(Trial.experiment_id == self._experiment_id)
        if len(wanted) <= _FEW:
            statement = statement.where(Trial.request_id.in_(wanted))
        self.update(session.execute(statement).tuples().all())

    def names(self, session: Session) -> TrialName:
        """What to call a trial in a sentence."""

        def name(request_id: str) -> str:
            self.read(session, [request_id])
            return f"trial {self[request_id]}" if request_id in self else request_id

        return name


class _Search:
    """One that is followed: where it stands, where it was looked at in the past, and what was kept on the way."""

    def __init__(self, experiment_id: int) -> None:
        self.lock = threading.Lock()
        self.numbers = Numbers(experiment_id)
        self._experiment_id = experiment_id
        self._now: Followed | None = None
        self._past: Followed | None = None
        self._kept: dict[int, bytes] = {}
        self._every = _FIRST_KEPT

    @property
    def count(self) -> int:
        """How many of its decisions were read."""
        return 0 if self._now is None else self._now.count

    def after(self, session: Session, number: int, begin: Callable[[], Search], *, is_last: bool) -> Followed:
        """See `FollowedSearches.after`."""
        if is_last and self._now is not None and self._now.count > number:
            return self._now  # others have looked since the last one was asked for
        if self._now is None or self._now.count <= number:
            followed, self._now = self._now, None  # what fails on the way is begun anew
            self._now = self._followed(session, followed or self._nearest(number, begin), number)
            return self._now
        followed, self._past = self._past, None
        if followed is None or not max(self._until(number), default=0) <= followed.count <= number:
            followed = self._nearest(number, begin)
        self._past = self._followed(session, followed, number)
        return self._past

    def _until(self, number: int) -> Iterator[int]:
        return (count for count in self._kept if count <= number)

    def _nearest(self, number: int, begin: Callable[[], Search]) -> Followed:
        count = max(self._until(number), default=0)
        return pickle.loads(self._kept[count]) if count else Followed(begin())

    def _followed(self, session: Session, followed: Followed, number: int) -> Followed:
        of_search = select(SearchDecision.decision).where(SearchDecision.experiment_id == self._experiment_id)
        while followed.count < number:
            kept_next = followed.count + self._every - followed.count % self._every
            last = min(kept_next, followed.count + _READ_AT_ONCE, number)
            between = SearchDecision.number > followed.count, SearchDecision.number <= last
            texts = session.scalars(of_search.where(*between).order_by(SearchDecision.number)).all()
            if not texts:
                break
            followed.follow(map(Decision.model_validate_json, texts))
            if followed.count % self._every == 0:
                self._keep(followed)
        return followed

    def _keep(self, followed: Followed) -> None:
        if followed.count not in self._kept:
            self._kept[followed.count] = pickle.dumps(followed, pickle.HIGHEST_PROTOCOL)
        if len(self._kept) > _MOST_KEPT:
            self._every *= 2
            self._kept = {count: kept for count, kept in self._kept.items() if count % self._every == 0}


class FollowedSearches:
    """Those that were looked at last."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, _Search] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def after(
        self, session: Session, experiment_id: int, number: int, begin: Callable[[], Search], *, is_last: bool = False
    ) -> Generator[tuple[Followed, Numbers]]:
        """A search after one of its decisions, for the block alone, which must not change it; the ids of its trials.

        Args:
            session: To read with.
            experiment_id: Whose.
            number: The decision. The search stands at its last one where it has fewer.
            begin: Makes the search as it was before the first one.
            is_last: Whether it was the last one just now: further ones are welcome.
        """
        with self._lock:
            search = self._known.setdefault(experiment_id, _Search(experiment_id))
            self._known.move_to_end(experiment_id)
        with search.lock:
            followed = search.after(session, number, begin, is_last=is_last)
            self._forget()
            yield followed, search.numbers

    def _forget(self) -> None:
        with self._lock:
            decisions = sum(search.count for search in self._known.values())
            while len(self._known) > 1 and (len(self._known) > _MOST or decisions > _MOST_DECISIONS):
                _, search = self._known.popitem(last=False)
                decisions -= search.count
