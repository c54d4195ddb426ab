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
from api.ingest.log_policies import Found, LogPolicies, Said
from api.ingest.log_webhooks import Hit, LogHooks
from api.schemas.logs import LEVELS
from database.log_blocks import BLOCK, COLUMNS, Lines
from database.log_lines import insert_columns
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

    def store(self, caller: Any, lines: Lines) -> None:
        """Store the lines of a request; returns when they are committed. Raises: NotFound, Forbidden."""
        own, own_task = "", ""
        given = lines.columns
        if isinstance(caller, AllocationPrincipal):
            own, own_task = caller.allocation_id, caller.task_id
            if {*given["task_id"]} - {None, "", own_task}:
                raise Forbidden(f"these are not lines of task {own_task}")
        elif isinstance(caller, UserPrincipal):  # trained elsewhere
            with self.database.read() as session:
                for task_id in {task_id or "" for task_id in given["task_id"]}:
                    of_unmanaged_task(session, caller, task_id)
        elif isinstance(caller, AgentPrincipal):
            with self.database.read() as session:
                _check_agents_lines(session, caller, lines)
        if not isinstance(caller, AgentPrincipal):
            # Where a line is in a container's output its agent says. From others it would displace the agent's own.
            lines = Lines({**given, "line_offset": [None] * len(lines)})
        is_one = bool(own_task) or len({*zip(given["task_id"], given["allocation_id"], strict=True)}) == 1
        size = _SLICE_OF_ONE if is_one else _SLICE
        for at in range(0, len(lines), size):
            self._store_slice(lines[at : at + size], own, own_task)

    def _store_slice(self, sent: Lines, own: str, own_task: str) -> None:
        """Keep some lines; those of others come in between. Sent again, what was kept before an error is kept once."""
        task_ids: dict[str, str] = {}
        found, hits = Found(), list[Hit]()
        given = sent.columns
        allocations = {own} if own else {allocation_id or "" for allocation_id in given["allocation_id"]}
        if self.policies.are_for(allocations) or self.hooks.are_there():
            said = _said(given, own)
            found, hits = self.policies.search(said), self.hooks.search(said)
        with self.database.write() as session:
            named = zip(given["task_id"], given["allocation_id"], strict=True)
            wanted = {allocation_id for task_id, allocation_id in {*named} if not task_id and allocation_id}
            if wanted and not own_task:
                rows = session.execute(select(Allocation.id, Allocation.task_id).where(Allocation.id.in_(wanted)))
                task_ids = dict(rows.tuples().all())
            # first what waits for the rows of others: who holds these may write lines of the task as well
            self.policies.keep(session, found)
            self.hooks.keep(session, hits)
            store_lines(session, sent, task_ids, own_task)
        self.policies.committed(found)
        self.hooks.committed(hits)


def _said(given: Mapping[str, Sequence[Any]], own: str) -> list[Said]:
    """By allocation what its lines say. `own`: of the container that sends them."""
    texts = [text or "" for text in given["log"]]
    if own:  # what a container says of allocation and agent is not asked for: a match has consequences
        return [Said(own, [""] * len(texts), texts)]
    by_allocation: dict[str, tuple[list[str], list[str]]] = {}
    for allocation_id, agent_id, text in zip(given["allocation_id"], given["agent_id"], texts, strict=True):
        if allocation_id:
            agents, lines = by_allocation.setdefault(allocation_id, ([], []))
            agents.append(agent_id or "")
            lines.append(text)
    return [Said(allocation_id, *columns) for allocation_id, columns in by_allocation.items()]


def _check_agents_lines(session: Session, caller: AgentPrincipal, lines: Lines) -> None:
    """An agent that joined sends lines of its own containers, as itself. Raises: NotFound, Forbidden."""
    if caller.agent_id is None:
        return
    given = lines.columns
    task_ids = own_allocations(session, caller, {allocation_id or "" for allocation_id in given["allocation_id"]})
    origins = zip(*(given[name] for name in ("allocation_id", "task_id", "container_id", "agent_id")), strict=True)
    for allocation_id, task_id, container_id, agent_id in dict.fromkeys(origins):
        own_task = task_ids[allocation_id or ""]
        if (task_id or own_task) != own_task:
            raise Forbidden(f"taskId: {task_id!r} is not the task of allocation {allocation_id}")
        if container_id and not container_id.startswith(f"{allocation_id}-"):
            raise Forbidden(f"containerId: {container_id!r} is not of allocation {allocation_id}")
        if agent_id not in (None, "", caller.agent_id):
            raise Forbidden(f"agentId: {agent_id!r} is not {caller.agent_id!r}, which sends this")


def store_lines(session: Session, sent: Lines, task_ids: Mapping[str, str], own_task: str = "") -> None:
    """Keep these lines. A line that was delivered before, by (container, offset), is not kept again.

    Args:
        session: to write with.
        sent: as they were sent.
        task_ids: of allocations, for lines that name no task.
        own_task: the task that all of them belong to, if it is known.
    """
    now, given = utc_now(), sent.columns
    if own_task:
        tasks = [own_task] * len(sent)
    else:
        named = zip(given["task_id"], given["allocation_id"], strict=True)
        tasks = [task_id or task_ids.get(allocation_id or "", "") for task_id, allocation_id in named]
    stored = {
        **given,
        "task_id": tasks,
        "timestamp": [time or now for time in given["timestamp"]],
        "level": list(map(_STORED_LEVELS.get, given["level"])),
        "log": _texts(given["log"]),
    }
    insert_columns(session, Lines({name: stored[name] for name in COLUMNS}))


#: By what senders call them.
_STORED_LEVELS: dict[str | None, str] = {name: level for level in LEVELS for name in (level, f"LOG_LEVEL_{level}")}


def _texts(sent: Sequence[Any]) -> Sequence[str]:
    """Texts as they are stored. Most need nothing, which one look at all of them says."""
    texts = sent if all(sent) else [text or "" for text in sent]
    together = "".join(texts)
    if "\n" in together or "\x00" in together or max(map(len, texts), default=0) > MAX_LINE:
        return [_line(text) for text in texts]
    return texts


def _line(text: str) -> str:
    line = text.rstrip("\n").replace("\x00", "")
    if len(line) <= MAX_LINE:
        return line
    return f"{line[:MAX_LINE]} … [cut off: the line had {len(line)} characters]"
