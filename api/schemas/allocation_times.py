"""When the trials of an experiment held slots."""

from __future__ import annotations

from api.schemas.base import Instant, Wire


class AllocationTimes(Wire):
    """One allocation of a trial.

    Attributes:
        trial_id: Whose.
        run_id: From 1.
        slots: That it holds, on `agents`.
        agents: Hosts.
        started_at: When it got its slots.
        ready_at: When its harness first asked for something; None before.
        ended_at: None while it holds them.
        kind: What its end means: clean, finished, failed, system or fatal.
        cause: Why it ended.
        message: In words.
    """

    trial_id: int
    run_id: int
    slots: int
    agents: list[str]
    started_at: Instant
    ready_at: Instant | None = None
    ended_at: Instant | None = None
    kind: str = ""
    cause: str = ""
    message: str = ""


class TrialTimes(Wire):
    """A trial: from when it waited for slots, and until when it wanted any."""

    trial_id: int
    started_at: Instant
    ended_at: Instant | None = None


class ExperimentTimes(Wire):
    """The newest allocations of an experiment, by their start, and the trials that they are of, by number."""

    trials: list[TrialTimes]
    allocations: list[AllocationTimes]
