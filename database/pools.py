"""What a pool's slots cost, and which pool's agents do work that is not training."""

from __future__ import annotations

from sqlalchemy.orm import Session

from database.models import Cluster, Experiment, ResourcePool


def price_an_hour(session: Session, pool: str, slots: int) -> float:
    """What slots of a pool cost for an hour; 0 if the pool has no price."""
    row = session.get(ResourcePool, pool) if slots else None
    return 0.0 if row is None else slots * float(row.settings.get("slot_hour_price") or 0.0)


def storage_pool(session: Session, experiment: Experiment) -> str:
    """The pool whose agents reach an experiment's checkpoints: its own, else the cluster's default."""
    if session.get(ResourcePool, experiment.resource_pool) is not None:
        return experiment.resource_pool
    return session.get_one(Cluster, 1).compute_pool
