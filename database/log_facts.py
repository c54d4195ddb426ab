"""What a trial's log says about the end of its run: matches of log policies, and the traceback it ended with."""

from __future__ import annotations

import re
from typing import TypedDict, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from database.models import Allocation, LogPolicyMatch, TaskLog, Trial

#: The last line of Python's traceback for a failed import.
_IMPORT_FAILED = re.compile(r"^(ModuleNotFoundError|ImportError): .+")
#: It is looked for in this many lines before the end: a wrapper may have had the last word.
_LAST_LINES = 5
#: Escape sequences of terminals, and all other control characters.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x1f\x7f-\x9f]")
#: How much of a line is quoted.
_QUOTED_CHARS = 200


def import_failure(session: Session, allocation: Allocation) -> str | None:
    """The line with which the output of an allocation ended, if it tells of a failed import."""
    statement = (
        select(TaskLog.log)
        .where(TaskLog.task_id == allocation.task_id, TaskLog.allocation_id == allocation.id, TaskLog.source == "task")
        .order_by(TaskLog.id.desc())
        .limit(_LAST_LINES)
    )
    for line in session.scalars(statement):
        if _IMPORT_FAILED.match(line):
            return _quoted(line)
    return None


class LogActions(TypedDict):
    """What log policies want done with a trial, and which of them because of which line."""

    retries_canceled: str | None
    excluded: dict[str, str]  # agents


def actions_of_log_policies(session: Session, trial_id: int | None) -> LogActions:
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
            excluded.setdefault(agent_id, reason)
    return {"retries_canceled": canceled, "excluded": excluded}


def describe_match(match: LogPolicyMatch) -> str:
    """Which policy matched which line, in words."""
    policy = f"`{_quoted(match.name)}`" if match.name else f"with the pattern `{_quoted(match.pattern)}`"
    return f"the log policy {policy} matched the line `{_quoted(match.line)}`"


def _quoted(text: str) -> str:
    """Text of a user as a part of a sentence of ours: short, and without what moves a terminal's cursor."""
    return _CONTROL.sub(" ", text).strip()[:_QUOTED_CHARS]
