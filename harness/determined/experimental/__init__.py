"""Experiments, trials, checkpoints and models, as seen from outside of the training.

`determined.experimental.client` offers all of it as functions, `determined.experimental.aio` for programs on asyncio.
"""

from __future__ import annotations

from determined.common.experimental._types import (
    CheckpointOrderBy,
    CheckpointSortBy,
    CheckpointState,
    DownloadMode,
    ExperimentOrderBy,
    ExperimentSortBy,
    ExperimentState,
    LogLevel,
    ModelOrderBy,
    ModelSortBy,
    OrderBy,
    TrialOrderBy,
    TrialSortBy,
    TrialState,
)
from determined.common.experimental.campaign import Campaign, CampaignRun
from determined.common.experimental.checkpoint import Checkpoint
from determined.common.experimental.determined import Determined
from determined.common.experimental.experiment import Experiment, ExperimentReference
from determined.common.experimental.metrics import TrainingMetrics, TrialMetrics, ValidationMetrics
from determined.common.experimental.model import Model, ModelVersion
from determined.common.experimental.oauth2_scim_client import Oauth2ScimClient
from determined.common.experimental.project import Project
from determined.common.experimental.resource_pool import ResourcePool
from determined.common.experimental.trial import Trial, TrialReference
from determined.common.experimental.user import User
from determined.common.experimental.workspace import Workspace

__all__ = [
    "Campaign",
    "CampaignRun",
    "Checkpoint",
    "CheckpointOrderBy",
    "CheckpointSortBy",
    "CheckpointState",
    "Determined",
    "DownloadMode",
    "Experiment",
    "ExperimentOrderBy",
    "ExperimentReference",
    "ExperimentSortBy",
    "ExperimentState",
    "LogLevel",
    "Model",
    "ModelOrderBy",
    "ModelSortBy",
    "ModelVersion",
    "Oauth2ScimClient",
    "OrderBy",
    "Project",
    "ResourcePool",
    "TrainingMetrics",
    "Trial",
    "TrialMetrics",
    "TrialOrderBy",
    "TrialReference",
    "TrialSortBy",
    "TrialState",
    "User",
    "ValidationMetrics",
    "Workspace",
]
