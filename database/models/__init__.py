"""The tables: what people query. Decisions live in workflows; these records follow them.

A row's identity is what decided it (an experiment and a request id, an allocation id, a checkpoint uuid), so that every
write of an activity can be an upsert.
"""

from database.models.audit import AuditEntry, AuditSubject
from database.models.base import Base, BigId
from database.models.budgets import Budget
from database.models.campaigns import (
    Campaign,
    CampaignContext,
    CampaignLaunch,
    CampaignRun,
    CampaignStep,
    CampaignVersion,
)
from database.models.cluster import (
    Agent,
    AgentJoinToken,
    ApiProcess,
    Cluster,
    ClusterMessage,
    HeldStart,
    Outbox,
    PoolSample,
    ResourcePool,
)
from database.models.contexts import Context, ContextChunk, ContextChunkData, ContextPart, HoldsContext
from database.models.experiments import DecidedTrial, Experiment, ModelDefinition, SearchDecision
from database.models.functions import ADD_REPORTS
from database.models.gates import Gate
from database.models.imports import Import, ImportMark, ImportTable, TokenKey
from database.models.organization import (
    ConfigPolicy,
    NamespaceBinding,
    PoolBinding,
    PoolGrant,
    Project,
    ProjectVisit,
    Workspace,
    WorkspacePin,
)
from database.models.people import (
    AnsweredRequest,
    Group,
    GroupMember,
    LoginFailure,
    RoleAssignment,
    User,
    UserSetting,
    UserToken,
)
from database.models.registry import Model, ModelVersion, Template, TrialSource
from database.models.submissions import Submission
from database.models.tasks import Allocation, AllocationContainer, Task, TaskContext, TaskDependency, TaskSecret
from database.models.trials import (
    Checkpoint,
    LogBlock,
    LogBlockContainer,
    LogPolicyMatch,
    Metric,
    MetricBlock,
    MetricColumn,
    StorageRemoval,
    TaskLog,
    Trial,
)
from database.models.webhooks import Webhook, WebhookDelivery, WebhookTrigger

__all__ = [
    "ADD_REPORTS",
    "Agent",
    "AgentJoinToken",
    "Allocation",
    "AllocationContainer",
    "AnsweredRequest",
    "ApiProcess",
    "AuditEntry",
    "AuditSubject",
    "Base",
    "BigId",
    "Budget",
    "Campaign",
    "CampaignContext",
    "CampaignLaunch",
    "CampaignRun",
    "CampaignStep",
    "CampaignVersion",
    "Checkpoint",
    "Cluster",
    "ClusterMessage",
    "ConfigPolicy",
    "Context",
    "ContextChunk",
    "ContextChunkData",
    "ContextPart",
    "DecidedTrial",
    "Experiment",
    "Gate",
    "Group",
    "GroupMember",
    "HeldStart",
    "HoldsContext",
    "Import",
    "ImportMark",
    "ImportTable",
    "LogBlock",
    "LogBlockContainer",
    "LogPolicyMatch",
    "LoginFailure",
    "Metric",
    "MetricBlock",
    "MetricColumn",
    "Model",
    "ModelDefinition",
    "ModelVersion",
    "NamespaceBinding",
    "Outbox",
    "PoolBinding",
    "PoolGrant",
    "PoolSample",
    "Project",
    "ProjectVisit",
    "ResourcePool",
    "RoleAssignment",
    "SearchDecision",
    "StorageRemoval",
    "Submission",
    "Task",
    "TaskContext",
    "TaskDependency",
    "TaskLog",
    "TaskSecret",
    "Template",
    "TokenKey",
    "Trial",
    "TrialSource",
    "User",
    "UserSetting",
    "UserToken",
    "Webhook",
    "WebhookDelivery",
    "WebhookTrigger",
    "Workspace",
    "WorkspacePin",
]
