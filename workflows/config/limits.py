"""Limits of a task's time: how long before its end its log warns, and the words for both. Pure: no clock."""

from __future__ import annotations

from workflows.config.durations import shown
from workflows.lifecycle.task import TaskKind

#: So long before the end its log warns.
_WARNED_S = 300.0
#: The group of `det` that has the tasks of a kind.
_GROUPS = {TaskKind.GENERIC: "task"}


def idle_warned_s(limit_s: float) -> float:
    """Seconds before it ends unused at which its log warns.

    Where the limit is shorter than ten minutes, that is half of it: each use begins it anew, and a task that is in
    use must not warn all the time.
    """
    return min(_WARNED_S, limit_s / 2)


def lifetime_warned_s(limit_s: float) -> float:
    """Seconds before its lifetime is over at which its log warns: at once if that is shorter."""
    return min(_WARNED_S, limit_s)


def idle_warning(task_id: str, kind: TaskKind, name: str, left_s: float, limit_s: float) -> str:
    """The line of a task that has not been used for almost as long as it may."""
    unused = shown(round(limit_s - left_s))
    return (
        f"{name} will end in {_in_words(left_s)}, since it has not been used for {unused}: use it, or"
        f" `det {group_of(kind)} set idle-timeout {task_id} {shown(2 * limit_s)}`"
    )


def lifetime_warning(task_id: str, kind: TaskKind, name: str, left_s: float, limit_s: float) -> str:
    """The line of a task that has run for almost as long as it may."""
    return (
        f"{name} will end in {_in_words(left_s)}, since its max_lifetime is {shown(limit_s)}:"
        f" `det {group_of(kind)} set lifetime {task_id} {shown(2 * limit_s)}` lets it run longer"
    )


def idle_end(limit_s: float) -> str:
    """Why a task ends that nobody uses. Clients know these words."""
    return f"idle for more than {shown(limit_s)}: service is inactive"


def lifetime_end(limit_s: float) -> str:
    """Why a task ends that has run for as long as it may."""
    return f"it has run for {shown(limit_s)}, its max_lifetime"


def group_of(kind: TaskKind) -> str:
    """The group of `det` with the commands for a task of this kind."""
    return _GROUPS.get(kind, kind.value.lower())


def _in_words(seconds: float) -> str:
    """5 minutes, 1 minute; else as a duration."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if rest or not 1 <= minutes <= 60:
        return shown(whole)
    return f"{minutes} minute{'' if minutes == 1 else 's'}"
