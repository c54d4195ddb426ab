"""Log policies: each received line is searched for its experiment's patterns before it is acknowledged.

So every delivered line has been matched, and code that judges the end of a run after its output was delivered knows all
matches. An experiment's policies never change, so they are read once for each allocation.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from database.log_blocks import Line
from database.log_lines import insert_lines
from database.models import Allocation, Experiment, LogPolicyMatch, Trial
from database.session import Database
from database.types import utc_now
from database.upsert import insert
from workflows.config import LogPolicy
from workflows.config.patterns import PatternRefused, PatternSet

log = structlog.get_logger()

#: What is remembered: allocations, and compiled sets of patterns (up to 8 MiB each).
_ALLOCATIONS, _SETS = 2000, 32
#: A line is searched up to here, and shown up to here with what it caused.
_SEARCHED_CHARS, KEPT_CHARS = 65_536, 1000
#: Seconds of processor time for the lines of one allocation in one delivery. RE2 never takes more than linear time, but
#: there are patterns that take it 10 µs a byte; usual ones take 0.02 µs.
_BUDGET_S = 1.0
_CHARS_BETWEEN_LOOKS = 16_384
#: Lines that are searched as one text at first: in most of them nothing is found.
_TOGETHER = 256

#: A line that prints the configuration would match the very patterns that it holds: the map as a whole, in any style,
#: or the pattern's own line of a YAML or JSON text.
_CONFIG_LINE = re.compile(r"""["']?\blog_policies["']?\s*[:=]|^[\s,{-]*["']?pattern["']?\s*:""")


@dataclass(frozen=True)
class SentLine:
    """A line, and whose it is. `agent_id` is empty if the sender did not say."""

    allocation_id: str
    agent_id: str
    text: str


class TooSlow(Exception):
    """Patterns take longer than they may on these lines."""


@dataclass(frozen=True)
class Said:
    """Lines of one allocation, by columns."""

    allocation_id: str
    agents: Sequence[str]
    texts: Sequence[str]

    def found(self, patterns: PatternSet, until: float) -> Iterator[tuple[SentLine, int]]:
        """Lines in which patterns occur, with the index of the pattern, in order.

        Args:
            patterns: What to look for.
            until: The processor time of this thread, in seconds, at which the search is given up.

        Raises: TooSlow.
        """
        for begin, piece in self._pieces():
            if time.thread_time() > until:
                raise TooSlow
            if not patterns.may_match(piece):
                continue
            for place, text in enumerate(piece, begin):
                for index in patterns.matches(text):
                    yield SentLine(self.allocation_id, self.agents[place], self.texts[place]), index

    def _pieces(self) -> Iterator[tuple[int, list[str]]]:
        """The texts as far as they are searched, some at a time, with the place of the first."""
        piece: list[str] = []
        chars = begin = 0
        for place, text in enumerate(self.texts):
            chars += len(text)
            piece.append(text[:_SEARCHED_CHARS])
            if len(piece) == _TOGETHER or chars > _CHARS_BETWEEN_LOOKS:
                yield begin, piece
                piece, chars, begin = [], 0, place + 1
        if piece:
            yield begin, piece


@dataclass(frozen=True)
class Match:
    """A line that a policy matched. `policy` is the policy's place in the configuration."""

    line: SentLine
    trial_id: int
    policy: int
    name: str | None
    pattern: str
    action: str | None


@dataclass
class Found:
    """What a delivery of lines led to: new matches, and allocations whose patterns were given up as too slow."""

    matches: list[Match] = field(default_factory=list[Match])
    too_slow: dict[str, str] = field(default_factory=dict[str, str])  # allocation id to task id


@dataclass
class _Watched:
    """The policies of an allocation, and which of them are recorded already, by agent."""

    trial_id: int
    task_id: str
    policies: list[tuple[int, LogPolicy]]
    patterns: PatternSet
    recorded: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    is_off: bool = False


class LogPolicies:
    """Matches lines; one object a process, used by many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._watched: OrderedDict[str, _Watched | None] = OrderedDict()
        self._sets: OrderedDict[tuple[str, ...], PatternSet] = OrderedDict()

    def are_for(self, allocation_ids: Iterable[str]) -> bool:
        """Whether lines of one of these allocations are to be searched."""
        some = (self._policies_of(allocation_id) for allocation_id in allocation_ids if allocation_id)
        return any(watched is not None and not watched.is_off for watched in some)

    def search(self, said: Iterable[Said]) -> Found:
        """The first match of each policy, allocation and agent that is not recorded yet. Writes nothing."""
        found = Found()
        for each in said:
            watched = self._policies_of(each.allocation_id)
            if watched is not None and not watched.is_off:
                _search(watched, each, found)
        return found

    def keep(self, session: Session, found: Found) -> None:
        """Record matches, in the transaction that keeps the lines. Recorded twice is recorded once."""
        ids = {match.line.allocation_id for match in found.matches}
        if ids:
            # who is deleted meanwhile has no use for them
            known = set(session.scalars(select(Allocation.id).where(Allocation.id.in_(ids))))
            rows = [_row(match) for match in found.matches if match.line.allocation_id in known]
            if rows:
                session.execute(insert(session, LogPolicyMatch).on_conflict_do_nothing(), rows)
        for allocation_id, task_id in found.too_slow.items():
            insert_lines(session, [_notice(allocation_id, task_id)])

    def committed(self, found: Found) -> None:
        """What was kept is recorded for good: it need not be kept again."""
        for match in found.matches:
            watched = self._policies_of(match.line.allocation_id)
            if watched is not None:
                watched.recorded.add((match.policy, match.line.agent_id))
        for allocation_id in found.too_slow:
            watched = self._policies_of(allocation_id)
            if watched is not None:
                watched.is_off = True
            log.warning("log policies are too slow, switched off", allocation_id=allocation_id)

    def _policies_of(self, allocation_id: str) -> _Watched | None:
        with self._lock:
            if allocation_id in self._watched:
                self._watched.move_to_end(allocation_id)
                return self._watched[allocation_id]
        with self._database.read() as session:
            row = session.execute(
                select(Trial.id, Allocation.task_id, Experiment.config)
                .select_from(Allocation)
                .join(Trial, Trial.id == Allocation.trial_id)
                .join(Experiment, Experiment.id == Trial.experiment_id)
                .where(Allocation.id == allocation_id)
            ).one_or_none()
        if row is None:
            return None  # not recorded yet, perhaps: not remembered
        with self._lock:
            watched = self._watched.setdefault(allocation_id, self._watch(*row.tuple()))
            if len(self._watched) > _ALLOCATIONS:
                self._watched.popitem(last=False)
        return watched

    def _watch(self, trial_id: int, task_id: str, config: dict[str, Any]) -> _Watched | None:
        listed = [LogPolicy.model_validate(policy) for policy in cast("list[Any]", config.get("log_policies") or [])]
        policies = [(number, policy) for number, policy in enumerate(listed) if policy.pattern is not None]
        if not policies:
            return None
        key = tuple(policy.pattern or "" for _, policy in policies)
        if key not in self._sets:
            try:
                self._sets[key] = PatternSet(key)
            except PatternRefused as error:  # not at the experiment's creation: by another release of the engine
                log.error("log policies are refused now", trial_id=trial_id, error=str(error))
                return None
            if len(self._sets) > _SETS:
                self._sets.popitem(last=False)
        self._sets.move_to_end(key)
        return _Watched(trial_id=trial_id, task_id=task_id, policies=policies, patterns=self._sets[key])


def _search(watched: _Watched, said: Said, found: Found) -> None:
    seen = set(watched.recorded)
    try:
        for line, index in said.found(watched.patterns, time.thread_time() + _BUDGET_S):
            number, policy = watched.policies[index]
            if (number, line.agent_id) in seen or _CONFIG_LINE.search(line.text):
                continue
            seen.add((number, line.agent_id))
            found.matches.append(
                Match(line, watched.trial_id, number, policy.name, policy.pattern or "", policy.action)
            )
    except TooSlow:
        found.too_slow[said.allocation_id] = watched.task_id


def _row(match: Match) -> dict[str, Any]:
    return {
        "allocation_id": match.line.allocation_id,
        "policy": match.policy,
        "agent_id": match.line.agent_id,
        "trial_id": match.trial_id,
        "name": match.name,
        "pattern": match.pattern,
        "action": match.action,
        "line": match.line.text.strip().replace("\x00", "")[:KEPT_CHARS],
        "matched_at": utc_now(),
    }


def _notice(allocation_id: str, task_id: str) -> Line:
    return Line(
        task_id=task_id,
        allocation_id=allocation_id,
        agent_id=None,
        container_id=f"log policies {allocation_id}",
        line_offset=0,
        rank_id=None,
        timestamp=utc_now(),
        level="WARNING",
        source="master",
        stdtype="stdout",
        log=f"The patterns of log_policies take too long on this output: they are not looked for any more in "
        f"{allocation_id}.",
    )
