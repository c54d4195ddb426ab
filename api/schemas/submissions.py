"""Submission protocol 1: work that is submitted once for its key. Names and fields: spec tasks.md §7."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.schemas.base import Raw, Timestamp, Wire


class Submit(Wire):
    """How a request is submitted."""

    idempotency_key: str = ""
    admission: str = ""
    dry_run: bool = False
    expected_digest: str = ""


class Evaluation(Wire):
    """What a dry run says of the work. An estimate of now: others may come first.

    `slots`, `price_per_hour`: of the task, or of each trial. `fits`: whether the pool's hosts have the slots at all.
    `estimated_wait_seconds`: null if slots did not come free lately, or never can in number. `code_digest`: SHA-256 of
    the manifest of the files.
    """

    code_digest: str
    resource_pool: str
    slots: int
    slots_offered: int
    slots_free: int
    largest_host: int
    fits: bool
    queued_ahead: int
    slots_ahead: int
    estimated_wait_seconds: float | None = None
    price_per_hour: float


class Submitted(Wire):
    """What became of a request. On a dry run there is no job, but the configuration and the outlook that it would have.

    `evaluation` is empty but on a dry run.
    """

    job_id: str
    replayed: bool
    request_digest: str
    outcome: str
    effective_config: Raw | None = None
    evaluation: Evaluation | dict[str, Any] = Field(default_factory=dict[str, Any])


class Placement(Wire):
    """A host that an allocation has slots of."""

    node: str
    accelerator_uuids: list[str]


class SubmissionAllocation(Wire):
    """A run of a task."""

    task_id: str
    allocation_id: str
    state: str
    slots: int
    resource_pool: str
    placements: list[Placement]
    exit_class: str
    exit_detail: Raw | None = None
    exit_reason: str
    status_code: int | None = None
    is_ready: bool
    start_time: Timestamp
    end_time: Timestamp | None = None


class SubmissionTask(Wire):
    """A task of a job."""

    task_id: str
    trial_id: int | None = None
    allocations: list[SubmissionAllocation]


class Submission(Wire):
    """A job that was submitted. Key and digest are for its owner and administrators."""

    job_id: str
    kind: str
    entity_id: str
    owner_id: int
    owner: str
    workspace_id: int
    project_id: int | None = None
    name: str
    idempotency_key: str | None = None
    request_digest: str | None = None
    admission: str = "ADMISSION_QUEUE"
    submitted_at: Timestamp
    ended_at: Timestamp | None = None
    state: str
    exit_class: str
    exit_reason: str
    tasks: list[SubmissionTask]


class SubmissionResponse(Wire):
    """One submission."""

    submission: Submission


class SubmissionsResponse(Wire):
    """A page of submissions, the newest first. No token: there are no more."""

    submissions: list[Submission]
    next_page_token: str
