"""Authorization to report for a trial: its container, and the users with permission to change its experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from sqlalchemy.orm import Session

from api.auth.authentication import Authenticator, Principal, TrialPrincipal, UserPrincipal
from api.auth.authorization import changeable, readable_task, readable_trial
from api.auth.containers import fence, own_trial
from api.errors import Forbidden
from api.threads import run_first
from database.session import Database


@dataclass(frozen=True)
class Reporter:
    """A caller that reports for a trial. Without an `allocation` it is a user."""

    trial_id: int
    experiment_id: int
    task_id: str
    allocation: TrialPrincipal | None

    @classmethod
    def of(cls, allocation: TrialPrincipal) -> Reporter:
        """A container, as the reporter of its own trial."""
        return cls(allocation.trial_id, allocation.experiment_id, allocation.task_id, allocation)

    @property
    def allocation_id(self) -> str | None:
        """Of the container that reports."""
        return self.allocation.allocation_id if self.allocation else None

    def fence(self, session: Session) -> None:
        """Refuse an orphaned copy of the trial, within the transaction that writes. Raises: Unauthenticated."""
        if self.allocation is not None:
            fence(session, self.allocation)


async def reporter_for(database: Database, auth: Authenticator, caller: Principal, trial_id: int) -> Reporter:
    """The caller, if authorized to report for this trial. Raises: Forbidden, NotFound.

    A user's authorization is cached for as long as their token is: a program that trains elsewhere reports as often as
    a container does.
    """
    if not isinstance(caller, UserPrincipal):
        return Reporter.of(own_trial(caller, trial_id))
    key = ("report", trial_id, caller)
    known = auth.allowed(key)
    if known is not None:
        return cast("Reporter", known)

    def find() -> Reporter:
        with database.read() as session:
            trial = readable_trial(session, trial_id, caller)
            changeable(session, trial.experiment_id, caller)
            return Reporter(trial_id, trial.experiment_id, trial.task_id, None)

    return cast("Reporter", auth.allow(key, await run_first(find)))


def of_unmanaged(session: Session, user: UserPrincipal, trial_id: int) -> Reporter:
    """A user as who says what only a trial's own program knows, its files and its log: of an unmanaged one.

    Raises: Forbidden, NotFound.
    """
    trial = readable_trial(session, trial_id, user)
    if not changeable(session, trial.experiment_id, user).is_unmanaged:
        raise Forbidden("this comes from the containers of a trial only: this one is managed by the cluster")
    return Reporter(trial_id, trial.experiment_id, trial.task_id, None)


def of_unmanaged_task(session: Session, user: UserPrincipal, task_id: str) -> Reporter:
    """The same by the task of such a trial. Raises: Forbidden, NotFound."""
    trial_id = readable_task(session, task_id, user).trial_id
    if trial_id is None:
        raise Forbidden("this comes from the containers of a task only: this one is managed by the cluster")
    return of_unmanaged(session, user, trial_id)
