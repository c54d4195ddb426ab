"""What jobs claim of their pools, and how to change that while they run."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy.orm import Session

from api.errors import BadRequest
from api.schemas.jobs import PatchResources
from api.services import config_policies
from api.temporal import outbox
from database.models import Experiment, Task
from workflows import names
from workflows.messages import JobClaim
from workflows.scheduling.model import Claim


def claim_of(row: Experiment | Task) -> JobClaim:
    """What a job may ask of its pool, and its place there, as recorded."""
    resources: dict[str, Any] = (row.config or {})["resources"]
    position = row.queue_position
    if position is None:
        position = round(row.started_at.timestamp() * 1_000_000) * 1000
    claim = Claim(
        priority=resources.get("priority"),
        weight=float(resources.get("weight") or 1),
        max_slots=resources.get("max_slots"),
        position=position,
    )
    return JobClaim(job_id=row.job_id, claim=claim)


def pool_of(row: Experiment | Task) -> str:
    """Where a job is."""
    return row.resource_pool if isinstance(row, Experiment) else row.pool or ""


def change(session: Session, row: Experiment | Task, wanted: PatchResources) -> None:
    """Change priority, weight and the cap of slots; absent ones stay. Raises: BadRequest.

    A new priority takes a job back to the place in it that is by its start.
    """
    changes = wanted.model_dump(exclude_none=True)
    if wanted.priority is not None and not 1 <= wanted.priority <= 99:
        raise BadRequest(f"priority: {wanted.priority}: priority must be between 1 and 99")
    if wanted.weight is not None and not (wanted.weight > 0 and math.isfinite(wanted.weight)):
        raise BadRequest(f"weight: {wanted.weight}: weight must be greater than 0")
    if wanted.max_slots is not None and not 0 <= wanted.max_slots < 2**31:
        raise BadRequest(f"maxSlots: {wanted.max_slots}: expected 0 or more")
    config_policies.check_change(session, row, changes)
    # a new object: the column compares by identity
    config = row.config or {}
    row.config = config | {"resources": config["resources"] | changes}
    if wanted.priority is not None:
        row.queue_position = None
    outbox.post(session, names.pool_workflow(pool_of(row)), "job_claim", claim_of(row).model_dump(mode="json"))


def note_move(row: Experiment | Task, claim: Claim) -> None:
    """Record where the pool has placed a job."""
    config = row.config or {}
    row.queue_position = claim.position
    row.config = config | {"resources": config["resources"] | {"priority": claim.priority}}
