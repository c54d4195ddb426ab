"""What `determined.experimental.client` offers, for programs on asyncio.

Every object has an asynchronous twin with the same methods and attributes: what waits for the master is awaited, and
what is an iterator is an asynchronous one. Enumerations, metrics and errors are the same::

    from determined.experimental import aio

    async with await aio.AsyncDetermined.login() as det:
        experiment = await det.create_experiment("my_config.yaml", ".")
        print(await experiment.wait(), (await experiment.top_checkpoint()).uuid)

One object is for one event loop.
"""

from __future__ import annotations

from determined.common.experimental._async.campaign import AsyncCampaign, AsyncCampaignRun
from determined.common.experimental._async.checkpoint import AsyncCheckpoint
from determined.common.experimental._async.experiment import AsyncExperiment
from determined.common.experimental._async.model import AsyncModel, AsyncModelVersion
from determined.common.experimental._async.project import AsyncProject
from determined.common.experimental._async.resource_pool import AsyncResourcePool
from determined.common.experimental._async.trial import AsyncTrial
from determined.common.experimental._async.user import AsyncUser
from determined.common.experimental._async.workspace import AsyncWorkspace
from determined.common.experimental.async_determined import AsyncDetermined

__all__ = [
    "AsyncCampaign",
    "AsyncCampaignRun",
    "AsyncCheckpoint",
    "AsyncDetermined",
    "AsyncExperiment",
    "AsyncModel",
    "AsyncModelVersion",
    "AsyncProject",
    "AsyncResourcePool",
    "AsyncTrial",
    "AsyncUser",
    "AsyncWorkspace",
]
