"""Which row has the files of an experiment or a task, for `api.services.context_contents.stored`."""

from __future__ import annotations

from sqlalchemy import Select, select

from database.models import ModelDefinition, Task, TaskContext, Trial
from workflows.lifecycle.task import TaskKind


def of_experiment(experiment_id: int) -> Select[bytes, int | None]:
    """Those that an experiment was created with."""
    columns = select(ModelDefinition.content, ModelDefinition.context_id)
    return columns.where(ModelDefinition.experiment_id == experiment_id)


def of_task(task_id: str, kind: TaskKind) -> Select[bytes, int | None]:
    """A task's. A trial's are those of its experiment, which are stored once for all of them."""
    if kind is not TaskKind.TRIAL:
        return select(TaskContext.content, TaskContext.context_id).where(TaskContext.task_id == task_id)
    return (
        select(ModelDefinition.content, ModelDefinition.context_id)
        .join(Trial, Trial.experiment_id == ModelDefinition.experiment_id)
        .join(Task, Task.trial_id == Trial.id)
        .where(Task.id == task_id)
    )
