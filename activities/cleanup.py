"""Records of the clean-up after an experiment's end: checkpoints are claimed and removed, records are erased."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import update
from temporalio import activity

from database import retention
from database.models import Experiment
from database.organization import note_failure
from database.session import Database
from workflows.messages import (
    ClaimedCheckpoints,
    CleanupOrder,
    DeletionFailed,
    ErasedExperiment,
    RemovedFiles,
)

#: Checkpoints that are claimed at once: what a crash leaves half-done, and what an agent does between two records.
_CLAIMED_AT_ONCE = 200
#: Rows of metrics and logs in one transaction.
_ERASED_AT_ONCE = 5000


class Cleanup:
    """Activities of the orchestrator; all of them may be done again.

    Args:
        database: The records.
        roots: The folders that the operator named for checkpoints.
    """

    def __init__(self, database: Database, roots: Sequence[str]) -> None:
        self._database = database
        self._roots = roots

    @activity.defn
    def claim_checkpoints(self, order: CleanupOrder) -> ClaimedCheckpoints:
        """Choose the next checkpoints to remove; at last, of an experiment that goes, its TensorBoard files."""
        with self._database.write() as session:
            experiment = session.get(Experiment, order.experiment_id)
            if experiment is None:  # erased by an earlier try
                return ClaimedCheckpoints()
            uuids = retention.claim(
                session, order.experiment_id, everything=order.everything, limit=_CLAIMED_AT_ONCE, roots=self._roots
            )
            is_last = not uuids and order.everything and retention.is_ours(experiment, self._roots)
            if not uuids and not is_last:
                return ClaimedCheckpoints()
            removal = retention.post_removal(session, experiment, uuids=uuids, tensorboard=is_last)
            return ClaimedCheckpoints(uuids=uuids, pool=removal.pool, removal_id=removal.id)

    @activity.defn
    def mark_deleted(self, removed: RemovedFiles) -> None:
        """Record that the files of checkpoints are gone."""
        with self._database.write() as session:
            retention.mark_removed(session, removed.removal_id, removed.uuids, is_finished=not removed.problems)

    @activity.defn
    def erase_experiment(self, order: CleanupOrder) -> ErasedExperiment:
        """Delete an experiment's records, in pieces. Heartbeat time-out: a minute. Done again, it goes on."""
        with self._database.read() as session:
            if session.get(Experiment, order.experiment_id) is None:
                others: list[int] = list(activity.info().heartbeat_details)
            else:
                others = retention.what_it_uses(session, order.experiment_id)
        is_gone = False
        while not is_gone:
            activity.heartbeat(*others)
            with self._database.write() as session:
                is_gone = retention.erase_some(session, order.experiment_id, _ERASED_AT_ONCE)
        return ErasedExperiment(others=others)

    @activity.defn
    def note_deletion_failed(self, failed: DeletionFailed) -> None:
        """Record why an experiment could not be deleted."""
        with self._database.write() as session:
            session.execute(
                update(Experiment)
                .where(Experiment.id == failed.experiment_id, Experiment.state == "DELETING")
                .values(state="DELETE_FAILED", error=failed.reason)
            )
            note_failure(session, failed.experiment_id, failed.reason)
