"""Which pool's agents do work that is not training."""

from __future__ import annotations

from sqlalchemy.orm import Session

from database.models import Cluster, Experiment, ResourcePool


def storage_pool(session: Session, experiment: Experiment) -> str:
    """The pool whose agents reach an experiment's checkpoints: its own, else the cluster's default."""
    if session.get(ResourcePool, experiment.resource_pool) is not None:
        return experiment.resource_pool
    return session.get_one(Cluster, 1).compute_pool
