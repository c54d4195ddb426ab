"""What of an experiment's claims to slots can change while it runs."""

from __future__ import annotations

import math

from sqlalchemy.orm import Session

from api import outbox
from api.errors import BadRequest
from api.wire.queue import PatchResources
from database.models import Experiment
from workflows import names
from workflows.messages import JobCap


def change(session: Session, row: Experiment, wanted: PatchResources) -> None:
    """Change priority, weight and the cap of slots; absent ones stay. Priority and weight are kept for policies that
    go by them: a pool that takes jobs first in, first out does not. Raises: BadRequest.
    """
    changes = wanted.model_dump(exclude_none=True)
    if wanted.priority is not None and not 1 <= wanted.priority <= 99:
        raise BadRequest(f"priority: {wanted.priority}: priority must be between 1 and 99")
    if wanted.weight is not None and not (wanted.weight > 0 and math.isfinite(wanted.weight)):
        raise BadRequest(f"weight: {wanted.weight}: weight must be greater than 0")
    if wanted.max_slots is not None and not 0 <= wanted.max_slots < 2**31:
        raise BadRequest(f"maxSlots: {wanted.max_slots}: expected 0 or more")
    # a new object: the column compares by identity
    row.config = row.config | {"resources": row.config["resources"] | changes}
    if wanted.max_slots is not None:
        cap = JobCap(job_id=row.job_id, max_slots=wanted.max_slots)
        outbox.post(session, names.pool_workflow(row.resource_pool), "job_cap", cap.model_dump(mode="json"))
