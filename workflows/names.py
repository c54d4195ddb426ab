"""Workflow ids, task queues and search attributes: functions of domain ids, spelled nowhere else."""

from __future__ import annotations

import re

ORCHESTRATOR_QUEUE = "orchestrator"

#: Search attributes for operators in Temporal's Web UI, name to type as `temporal operator search-attribute` spells it.
SEARCH_ATTRIBUTES = {
    "ExperimentId": "Int",
    "TrialId": "Int",
    "UndeterredState": "Keyword",
    "Pool": "Keyword",
    "User": "Keyword",
}

#: Labels of containers: of which trial, or kind of task, one is, and whether that starts again if it is stopped.
TRIAL_LABEL = "ai.undeterred.trial"
KIND_LABEL = "ai.undeterred.kind"
GOES_ON_LABEL = "ai.undeterred.goes-on"


def experiment_workflow(experiment_id: int) -> str:
    """Workflow id of an experiment."""
    return f"experiment-{experiment_id}"


def trial_workflow(trial_id: int) -> str:
    """Workflow id of a trial."""
    return f"trial-{trial_id}"


def task_workflow(task_id: str) -> str:
    """Workflow id of a task that is no trial."""
    return f"task-{task_id}"


def pool_workflow(pool: str) -> str:
    """Workflow id of a resource pool."""
    return f"pool-{pool}"


def autoscaler_workflow(pool: str) -> str:
    """Workflow id of what launches and terminates the nodes of a pool."""
    return f"nodes-{pool}"


def agent_workflow(agent_id: str) -> str:
    """Workflow id of an agent."""
    return f"agent-{agent_id}"


def agent_queue(agent_id: str) -> str:
    """Task queue that only this agent polls: what is sent there runs on its host."""
    return f"agent-{agent_id}"


def namespace_removal_workflow(agent_id: str, namespace: str) -> str:
    """Workflow that removes a namespace of an agent's cluster."""
    return f"remove-namespace-{agent_id}-{namespace}"


def file_removal_workflow(key: str) -> str:
    """Workflow that removes single files; `key` is a random one."""
    return f"remove-files-{key}"


def storage_queue(pool: str) -> str:
    """Task queue that the agents of a pool poll for work on checkpoint storage: each of them reaches it."""
    return f"storage-{pool}"


def gc_workflow(experiment_id: int) -> str:
    """Workflow id of the collection of an experiment's checkpoints."""
    return f"checkpoint-gc-{experiment_id}"


def deletion_workflow(experiment_id: int) -> str:
    """Workflow id of the deletion of an experiment."""
    return f"delete-experiment-{experiment_id}"


def delivery_workflow(delivery_id: str) -> str:
    """Workflow id of the delivery of an event to a webhook."""
    return f"webhook-delivery-{delivery_id}"


def import_workflow(import_id: int) -> str:
    """Workflow id of an import from another cluster's database."""
    return f"import-{import_id}"


def campaign_workflow(run_id: int) -> str:
    """Workflow id of a run of a campaign that a user started. What a schedule starts is named by Temporal."""
    return f"campaign-run-{run_id}"


def campaign_schedule(campaign_id: int) -> str:
    """Id of the schedule of a campaign in Temporal. Its workflows have it in front of their time."""
    return f"campaign-{campaign_id}"


def trial_task(experiment_id: int, request_id: str, continuation: int = 0) -> str:
    """Id of the task of a trial. Each time that its experiment continues and runs it again, it gets a further one."""
    first = f"{experiment_id}.{request_id}"
    return f"{first}-{continuation}" if continuation else first


def allocation_id(task_id: str, run_id: int) -> str:
    """Id of the run_id-th allocation of a task, counted from 1."""
    return f"{task_id}.{run_id}"


def container_id(allocation: str, rank: int) -> str:
    """Id of a container of an allocation. The same when it is launched again, so that a retry finds the first."""
    return f"{allocation}-{rank}"


_OF_WORKFLOW = re.compile(
    r"(?:experiment|delete-experiment|checkpoint-gc)-(?P<experiment_id>[0-9]+)"
    r"|trial-(?P<trial_id>[0-9]+)|task-(?P<task_id>.+)"
)
_OF_ALLOCATION = re.compile(r"(?P<task_id>(?:(?P<experiment_id>[0-9]+)\.)?[^.]+)\.[0-9]+")


def ids_of_workflow(workflow_id: str) -> dict[str, str]:
    """What a workflow is of, by name as log lines have it: `experiment_id`, `trial_id` or `task_id`."""
    return _named(_OF_WORKFLOW, workflow_id)


def ids_of_allocation(allocation: str) -> dict[str, str]:
    """The task of an allocation, and the experiment if that is a trial's."""
    return _named(_OF_ALLOCATION, allocation)


def _named(pattern: re.Pattern[str], text: str) -> dict[str, str]:
    match = pattern.fullmatch(text)
    return {name: value for name, value in match.groupdict().items() if value} if match else {}
