"""What a trial's log says about the end of its run: matches of log policies, and the traceback it ended with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypedDict, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from database import log_reads
from database.log_reads import LogFilter
from database.models import Allocation, AllocationContainer, Experiment, LogPolicyMatch, Trial
from database.upsert import insert
from workflows.lifecycle.allocation import BAD_GPU

#: How Python's traceback begins, and its last line: a class, and mostly words (not so of a bare `MemoryError`).
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: .*)?")
_NAMED_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)(: .*)?")
_IMPORT_FAILED = re.compile(r"(ModuleNotFoundError|ImportError): .+")
#: What a launch module says of the worker that failed first, and what torch's own launcher says a few lines later.
_FIRST_RANK = re.compile(
    r"determined\.exec\.launch: rank (\d{1,9}) (?:ended with|was ended by) | +rank +: (\d{1,9}) \(local_rank: "
)
#: What torch puts before the lines of a worker's traceback.
_RANK = re.compile(r"^\[rank(\d{1,9})\]: ?")
_OWN_WORDS = re.compile(r"^\[\d+\] [\w.]+: ")
#: How many of the last lines are searched for a failure, and for a failed import. The latter are fewer: a failed import
#: decides something, and an error that was survived must not. A wrapper may have had the last word.
_LOOKED_AT, _LAST_LINES, _LAST_OF_IMPORT = 2000, 30, 5
#: Escape sequences of terminals, and all other control characters.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x1f\x7f-\x9f]")
#: How much of a line is quoted.
_QUOTED_CHARS = 200
#: In the place of a log policy's: no configuration has so many.
_OF_BAD_GPU = 1_000_000


class Failure(TypedDict):
    """What the output of an allocation says of its failure: one line, and the same if it tells of a failed import."""

    last_error: str | None
    import_failure: str | None


def failure_of(session: Session, allocation: Allocation, container_id: str) -> Failure:
    """The last line of the exception that ended a container, or its worker that failed first, or of its last error."""
    of_code = LogFilter(allocation_ids=[allocation.id], container_ids=[container_id], sources=["task"])
    written = log_reads.lines(session, [allocation.task_id], of_code, most=_LOOKED_AT, descending=True)
    lines = [_of_rank(line.log, line.rank_id, line.level) for line in written]
    named = next((found for text, _, _ in lines if (found := _FIRST_RANK.search(text))), None)
    own = [line for line in lines if named is not None and line[1] == int(named[1] or named[2])] or lines
    texts = [text for text, _, _ in own]
    at = _end_of_traceback(texts)
    if at is None:
        found = next((text for text, _, level in own[:_LAST_LINES] if level in ("ERROR", "CRITICAL")), None)
        return Failure(last_error=_quoted(_OWN_WORDS.sub("", found)) if found else None, import_failure=None)
    line = _quoted(texts[at])
    is_import = at < _LAST_OF_IMPORT and _IMPORT_FAILED.fullmatch(texts[at]) is not None
    return Failure(last_error=line, import_failure=line if is_import else None)


def _of_rank(text: str, rank: int | None, level: str | None) -> tuple[str, int | None, str | None]:
    found = _RANK.match(text)
    return (text[found.end() :], int(found[1]) if rank is None else rank, level) if found else (text, rank, level)


def _end_of_traceback(newest_first: Sequence[str]) -> int | None:
    """Where the last line of the latest traceback is."""
    start = next((at for at, text in enumerate(newest_first) if text.strip() == _TRACEBACK), 0)
    for at in range(start - 1, -1, -1):
        text = newest_first[at]
        if text and not text[0].isspace():  # the frames before it are indented
            return at if at < _LAST_LINES and _EXCEPTION.fullmatch(text) else None
    # a syntax error has no such start, and one line may be all that a wrapper shows
    named = (at for at, text in enumerate(newest_first[:_LAST_OF_IMPORT]) if _NAMED_ERROR.fullmatch(text))
    return next(named, None)


class LogActions(TypedDict):
    """What log policies want done with a trial, and which of them because of which line."""

    retries_canceled: str | None
    excluded: dict[str, str]  # agents, or nodes of those that stand for a cluster


def actions_of_log_policies(session: Session, trial_id: int) -> LogActions:
    """What the policies want done that matched a line of the trial.

    All runs since the trial was continued last count: a line may come after its run was judged.
    """
    rows = session.execute(
        select(LogPolicyMatch, Allocation.placements)
        .join(Allocation, Allocation.id == LogPolicyMatch.allocation_id)
        .join(Trial, Trial.id == LogPolicyMatch.trial_id)
        .where(
            LogPolicyMatch.trial_id == trial_id,
            Allocation.run_id > Trial.continued_after,
            LogPolicyMatch.action.is_not(None),
        )
        .order_by(LogPolicyMatch.matched_at, LogPolicyMatch.policy, LogPolicyMatch.agent_id)
    ).tuples()
    canceled: str | None = None
    excluded: dict[str, str] = {}
    for match, placements in rows:
        reason = describe_match(match)
        if match.action == "cancel_retries":
            canceled = canceled or reason
            continue
        agents = [cast("str", place["agent_id"]) for place in placements]
        # the agent that sent the line, if it says so; otherwise it may have been any
        for agent_id in [match.agent_id] if match.agent_id in agents else agents:
            # of a cluster, where a container was: its nodes are machines, and its agent is none
            for machine in _nodes(session, match.allocation_id, placements, agent_id) or [agent_id]:
                excluded.setdefault(machine, reason)
    return {"retries_canceled": canceled, "excluded": excluded}


def note_bad_gpu(session: Session, allocation: Allocation, rank: int, line: str) -> None:
    """Exclude the machine of a container that its GPU failed, if its experiment has a failure policy for that."""
    config = session.scalar(
        select(Experiment.config)
        .join(Trial, Trial.experiment_id == Experiment.id)
        .where(Trial.id == allocation.trial_id)
    )
    if all(policy["failure"] != "bad_gpu" for policy in (config or {}).get("failure_policies") or ()):
        return
    agent_id = next((place["agent_id"] for place in allocation.placements if place["rank"] == rank), "")
    match = {
        "allocation_id": allocation.id,
        "policy": _OF_BAD_GPU,
        "agent_id": agent_id,
        "trial_id": allocation.trial_id,
        "name": "bad GPU",
        "pattern": BAD_GPU.pattern,
        "action": "exclude_node",
        "line": line,
    }
    session.execute(insert(session, LogPolicyMatch).values(match).on_conflict_do_nothing())


def _nodes(session: Session, allocation_id: str, placements: Sequence[dict[str, object]], agent_id: str) -> list[str]:
    ranks = [place["rank"] for place in placements if place["agent_id"] == agent_id]
    container = AllocationContainer
    mine = container.allocation_id == allocation_id, container.rank.in_(ranks), container.node != ""
    return list(session.scalars(select(container.node).where(*mine).order_by(container.rank)))


def describe_match(match: LogPolicyMatch) -> str:
    """Which policy matched which line, in words."""
    if match.policy == _OF_BAD_GPU:
        return f"the failure policy for `bad_gpu` matched the line `{_quoted(match.line)}`"
    policy = f"`{_quoted(match.name)}`" if match.name else f"with the pattern `{_quoted(match.pattern)}`"
    return f"the log policy {policy} matched the line `{_quoted(match.line)}`"


def _quoted(text: str) -> str:
    """Text of a user as a part of a sentence of ours: short, and without what moves a terminal's cursor."""
    return _CONTROL.sub(" ", text).strip()[:_QUOTED_CHARS]
