"""Which code decides: Temporal's worker deployments keep orchestrators of two versions from mixing their decisions.

A version is the release with a digest of the code that decides. The orchestrator that started last takes over: new
workflows and, as UNDETERRED_RUNNING_EXPERIMENTS says, those that run already. To roll back, start the older one again.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import sys
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

import structlog
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import WorkerDeploymentConfig

import workflows

log = structlog.get_logger()

#: What Temporal calls the orchestrators, and the agents beside them.
DEPLOYMENT = "undeterred"
_DEPLOYMENT_OF_AGENTS = "undeterred-agents"


@functools.cache
def build_id() -> str:
    """This code's version: `<release>-<digest of the workflow package>`."""
    digest = hashlib.sha256()
    root = Path(workflows.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{version('undeterred')}-{digest.hexdigest()[:12]}"


def deployment(build: str, *, takes_over: bool) -> WorkerDeploymentConfig:
    """How an orchestrator of this version registers. `takes_over`: running experiments go on with newer versions."""
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name=DEPLOYMENT, build_id=build),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE if takes_over else VersioningBehavior.PINNED,
    )


def deployment_of_agents() -> WorkerDeploymentConfig:
    """The build ID of an agent's workers. They are not versioned: any agent takes any order.

    Without it the SDK derives one by hashing the code of every loaded module: 0.3 s of processor time at each start.
    """
    release = WorkerDeploymentVersion(deployment_name=_DEPLOYMENT_OF_AGENTS, build_id=version("undeterred"))
    return WorkerDeploymentConfig(version=release, use_worker_versioning=False)


#: A Temporal that was killed asks a worker of its own, which may be gone, and gives that up after 30 s: asked anew, it
#: asks the next one.
_ANSWERS_WITHIN = timedelta(seconds=5)
#: Its workers are not registered yet, another orchestrator has just done the same, or Temporal was late or away.
_PASSES = (
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.FAILED_PRECONDITION,
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.CANCELLED,  # what the SDK makes of its own limit
    RPCStatusCode.DEADLINE_EXCEEDED,
)


async def take_over(client: Client, build: str, stop: asyncio.Event) -> None:
    """Make this version the current one, as soon as Temporal knows its workers. Returns early if asked to stop."""
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace, deployment_name=DEPLOYMENT, build_id=build, ignore_missing_task_queues=True
    )
    pause = 0.02
    while not stop.is_set():
        try:
            if await _current(client) == build:
                return
            await client.workflow_service.set_worker_deployment_current_version(request, timeout=_ANSWERS_WITHIN)
            log.info("took over", version=build)
            return
        except RPCError as error:
            if error.status is RPCStatusCode.UNIMPLEMENTED:
                log.error("this Temporal knows no worker deployments: server 1.28 or newer is needed")
                sys.exit(1)
            if error.status not in _PASSES:
                raise
            log.debug("can't take over yet", reason=error.message)
        try:
            async with asyncio.timeout(pause):
                await stop.wait()
        except TimeoutError:
            pause = min(1.0, pause * 1.5)


async def _current(client: Client) -> str | None:
    """The version that decides at present; None if there is none yet."""
    request = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=DEPLOYMENT)
    try:
        answer = await client.workflow_service.describe_worker_deployment(request, timeout=_ANSWERS_WITHIN)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    return answer.worker_deployment_info.routing_config.current_deployment_version.build_id or None
