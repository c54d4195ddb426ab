"""Log lines: from those who may send them, through policies and webhooks, into rows, each line once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth.agents import own_allocations
from api.auth.authentication import AgentPrincipal, AllocationPrincipal, UserPrincipal
from api.auth.reporters import of_unmanaged_task
from api.errors import Forbidden
from api.ingest.log_policies import Found, LogPolicies, SentLine
from api.ingest.log_webhooks import Hit, LogHooks
from api.schemas.logs import LEVELS, LogEntry
from database.log_blocks import BLOCK
from database.log_lines import LogLine, insert_lines
from database.models import Allocation
from database.session import Database
from database.types import utc_now

#: Lines that are stored in one transaction, which all other writers wait for: of several tasks, as rows, and of one.
_SLICE, _SLICE_OF_ONE = 500, BLOCK
#: The longest line that is stored whole, in characters. A longer one is cut off there, and says how long it was.
MAX_LINE = 64 * 1024


@dataclass
class LogWriter:
    """What stores log lines, and what searches them before they are acknowledged."""

    database: Database
    policies: LogPolicies
    hooks: LogHooks

    def store(self, caller: Any, entries: Sequence[LogEntry]) -> None:
        """Store the lines of a request; returns when they are committed. Raises: NotFound, Forbidden."""
        own, own_task = "", ""
        if isinstance(caller, AllocationPrincipal):
            own, own_task = caller.allocation_id, caller.task_id
            if any((entry.task_id or caller.task_id) != caller.task_id for entry in entries):
                raise Forbidden(f"these are not lines of task {caller.task_id}")
        elif isinstance(caller, UserPrincipal):  # trained elsewhere
            with self.database.read() as session:
                for task_id in {entry.task_id or "" for entry in entries}:
                    of_unmanaged_task(session, caller, task_id)
        elif isinstance(caller, AgentPrincipal):
            with self.database.read() as session:
                _check_agents_lines(session, caller, entries)
        if not isinstance(caller, AgentPrincipal):
            # Where a line is in a container's output its agent says. From others it would displace the agent's own.
            for entry in entries:
                entry.line_offset = None
        is_one = bool(own_task) or len({(entry.task_id, entry.allocation_id) for entry in entries}) == 1
        size = _SLICE_OF_ONE if is_one else _SLICE
        for at in range(0, len(entries), size):
            self._store_slice(entries[at : at + size], own, own_task)

    def _store_slice(self, entries: Sequence[LogEntry], own: str, own_task: str) -> None:
        """Keep some lines; those of others come in between. Sent again, what was kept before an error is kept once."""
        task_ids: dict[str, str] = {}
        found, hits = Found(), list[Hit]()
        allocations = {own} if own else {entry.allocation_id or "" for entry in entries}
        if self.policies.are_for(allocations) or self.hooks.are_there():
            lines = [
                # what a container says of allocation and agent is not asked for: a match has consequences
                SentLine(own or entry.allocation_id or "", "" if own else entry.agent_id or "", entry.log or "")
                for entry in entries
            ]
            found, hits = self.policies.search(lines), self.hooks.search(lines)
        with self.database.write() as session:
            wanted = {entry.allocation_id for entry in entries if not entry.task_id and entry.allocation_id}
            if wanted and not own_task:
                rows = session.execute(select(Allocation.id, Allocation.task_id).where(Allocation.id.in_(wanted)))
                task_ids = dict(rows.tuples().all())
            # first what waits for the rows of others: who holds these may write lines of the task as well
            self.policies.keep(session, found)
            self.hooks.keep(session, hits)
            store_lines(session, entries, task_ids, own_task)
        self.policies.committed(found)
        self.hooks.committed(hits)


def _check_agents_lines(session: Session, caller: AgentPrincipal, entries: Sequence[LogEntry]) -> None:
    """An agent that joined sends lines of its own containers, as itself. Raises: NotFound, Forbidden."""
    if caller.agent_id is None:
        return
    task_ids = own_allocations(session, caller, {entry.allocation_id or "" for entry in entries})
    for entry in entries:
        allocation_id = entry.allocation_id or ""
        if (entry.task_id or task_ids[allocation_id]) != task_ids[allocation_id]:
            raise Forbidden(f"taskId: {entry.task_id!r} is not the task of allocation {allocation_id}")
        if entry.container_id and not entry.container_id.startswith(f"{allocation_id}-"):
            raise Forbidden(f"containerId: {entry.container_id!r} is not of allocation {allocation_id}")
        if entry.agent_id not in (None, "", caller.agent_id):
            raise Forbidden(f"agentId: {entry.agent_id!r} is not {caller.agent_id!r}, which sends this")


def store_lines(session: Session, entries: Sequence[LogEntry], task_ids: Mapping[str, str], own_task: str = "") -> None:
    """Keep these lines. A line that was delivered before, by (container, offset), is not kept again.

    Args:
        session: to write with.
        entries: as they were sent.
        task_ids: of allocations, for lines that name no task.
        own_task: the task that all of them belong to, if it is known.
    """
    now = utc_now()
    lines: list[LogLine] = [
        {
            "task_id": own_task or entry.task_id or task_ids.get(entry.allocation_id or "", ""),
            "allocation_id": entry.allocation_id,
            "agent_id": entry.agent_id,
            "container_id": entry.container_id,
            "line_offset": entry.line_offset,
            "rank_id": entry.rank_id,
            "timestamp": entry.timestamp or now,
            "level": _STORED_LEVELS.get(entry.level or ""),
            "source": entry.source,
            "stdtype": entry.stdtype,
            "log": _line(entry.log or ""),
        }
        for entry in entries
    ]
    insert_lines(session, lines)


#: By what senders call them.
_STORED_LEVELS = {name: level for level in LEVELS for name in (level, f"LOG_LEVEL_{level}")}


def _line(text: str) -> str:
    line = text.rstrip("\n").replace("\x00", "")
    if len(line) <= MAX_LINE:
        return line
    return f"{line[:MAX_LINE]} … [cut off: the line had {len(line)} characters]"
