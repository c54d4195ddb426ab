"""Commands on experiments: activate, pause, cancel, kill, archive, unarchive."""

from __future__ import annotations

from sqlalchemy import update
from starlette.concurrency import run_in_threadpool

from api.auth.authentication import UserPrincipal
from api.auth.authorization import changeable
from api.errors import FailedPrecondition, NotFound, Unavailable
from api.queries import experiments
from api.services import budgets
from api.temporal.commands import Commands
from database.models import Experiment
from database.session import Database
from database.types import utc_now
from workflows.lifecycle.experiment import TERMINAL, Command, CommandRefused, ExperimentState, next_state


async def give(database: Database, commands: Commands, experiment_id: int, command: str, user: UserPrincipal) -> None:
    """Give an experiment a command, by its name. Raises: NotFound, Forbidden, FailedPrecondition, Unavailable."""
    if command in ("archive", "unarchive"):
        await run_in_threadpool(_archive, database, experiment_id, user, command == "archive")
        return
    try:
        wanted = Command(command)
    except ValueError:
        raise NotFound(f"experiments have no command {command!r}") from None
    await run_in_threadpool(_check_command, database, experiment_id, wanted, user)
    if await commands.command(experiment_id, wanted) is None:
        await run_in_threadpool(_command_without_workflow, database, experiment_id, wanted)
    else:
        await run_in_threadpool(_note_command, database, experiment_id, wanted, user)


def _check_command(database: Database, experiment_id: int, wanted: Command, user: UserPrincipal) -> None:
    with database.read() as session:
        row = changeable(session, experiment_id, user)
        if wanted is Command.ACTIVATE and row.state == ExperimentState.PAUSED.value:
            budgets.check_activation(session, row)


def _note_command(database: Database, experiment_id: int, taken: Command, user: UserPrincipal) -> None:
    """Who is to be asked why the experiment is paused, or was ended. A repeat changes nothing here either."""
    values = {"commanded": taken.value, "commanded_by": user.username, "commanded_at": utc_now()}
    with database.write() as session:
        session.execute(
            update(Experiment).where(Experiment.id == experiment_id, Experiment.commanded != taken.value).values(values)
        )


def _command_without_workflow(database: Database, experiment_id: int, wanted: Command) -> None:
    """The workflow is closed, or not started yet: the record's state decides."""
    with database.read() as session:
        state = ExperimentState(experiments.find(session, experiment_id).state)
    try:
        target = next_state(state, wanted)
    except CommandRefused as error:
        raise FailedPrecondition(str(error)) from None
    if target is not state:
        raise Unavailable(f"experiment {experiment_id} has not started yet: try again")


def _archive(database: Database, experiment_id: int, user: UserPrincipal, archived: bool) -> None:
    with database.write() as session:
        row = changeable(session, experiment_id, user)
        if ExperimentState(row.state) not in TERMINAL:
            raise FailedPrecondition(
                f"Experiment is not in terminal state. (experiment {experiment_id} is {row.state})"
            )
        session.execute(update(Experiment).where(Experiment.id == experiment_id).values(is_archived=archived))
