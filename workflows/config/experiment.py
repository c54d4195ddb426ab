"""The whole experiment configuration, version 0. Source: spec experiment-config.md §2."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from workflows.config.base import INT64_MAX, Length, Period, Section
from workflows.config.budget import Budget
from workflows.config.failures import FailurePolicy
from workflows.config.gates import Gate
from workflows.config.hyperparameters import Hyperparameters
from workflows.config.policies import (
    BUILTIN_LOG_POLICIES,
    Integrations,
    LogPolicy,
    Optimizations,
    Profiling,
    Reproducibility,
    RetentionPolicy,
)
from workflows.config.resources import BindMount, Environment, PbsConfig, Resources, SlurmConfig
from workflows.config.searcher import SearcherConfig
from workflows.config.storage import CheckpointStorage

Entrypoint = Annotated[
    str | list[str],
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Labels = Annotated[
    list[str],
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "string"}},
                {"type": "object", "additionalProperties": {"type": "boolean"}},
            ]
        }
    ),
]


class ExperimentConfig(Section):
    """A validated experiment config with every default filled in.

    Make one with :func:`workflows.config.parse_experiment_config`; the constructor checks types and bounds only.
    """

    model_config = ConfigDict(json_schema_extra={"x-complete-only": True})

    name: str = Field(description="Name that people see.")
    description: str | None = Field(default=None, description="What the experiment is about.")
    labels: Labels = Field(default=[], description="Words to find the experiment by; each counts once.")
    data: dict[str, Any] = Field(default={}, description="Anything the training code wants to read.")
    workspace: str = Field(default="", description="Workspace of the project; set it together with project.")
    project: str = Field(default="", description="Project to put the experiment in; needs workspace.")
    entrypoint: Entrypoint | None = Field(
        default=None, description="Command that trains: a shell line, a list of arguments, or module:TrialClass."
    )
    hyperparameters: Annotated[
        Hyperparameters,
        WithJsonSchema({"type": "object", "additionalProperties": {"x-ref": "Hyperparameter"}}),
    ] = Field(default={}, description="The search space: constants, ranges, choices, and maps of these.")
    searcher: SearcherConfig = Field(description="How the search space is explored.")
    resources: Resources = Field(default=Resources(), description="Slots, pool, priority.")
    budget: Budget | None = Field(default=None, description="What it may use before it is paused.")
    failure_policies: list[FailurePolicy] = Field(
        default=[], description="What is tried after a failure, before it costs a restart."
    )
    approve_before: list[Gate] = Field(default=[], description="What waits until it is approved.")
    environment: Environment = Field(default=Environment(), description="Container image, variables, ports.")
    bind_mounts: list[BindMount] = Field(default=[], description="Directories of the machine in the container.")
    checkpoint_storage: CheckpointStorage = Field(description="Where checkpoints go and how many are kept.")
    checkpoint_policy: Literal["best", "all", "none"] = Field(
        default="best", description="After which validations a checkpoint is written."
    )
    min_validation_period: Period = Field(
        default=Length(unit="batches", units=0), description="Validate at least this often; 0 means never by period."
    )
    min_checkpoint_period: Period = Field(
        default=Length(unit="batches", units=0), description="Checkpoint at least this often; 0 means never by period."
    )
    perform_initial_validation: bool = Field(default=False, description="Whether to validate before training.")
    records_per_epoch: int = Field(
        default=0, ge=0, le=INT64_MAX, description="Records of an epoch; older training loops convert lengths by it."
    )
    scheduling_unit: int = Field(
        default=100, ge=1, le=INT64_MAX, description="Batches between checks for preemption and metric reports."
    )
    max_restarts: int = Field(
        default=5, ge=0, le=INT64_MAX, description="Failures of one trial after which it is restarted."
    )
    preemption_timeout: int | None = Field(
        default=None, ge=0, le=INT64_MAX, description="Seconds between asking a trial to stop and killing it."
    )
    log_policies: list[LogPolicy] = Field(
        default=BUILTIN_LOG_POLICIES, description="What happens when a line of the log matches a pattern."
    )
    retention_policy: RetentionPolicy | None = Field(default=None, description="How long logs are kept.")
    reproducibility: Reproducibility = Field(description="The experiment's seed.")
    profiling: Profiling = Field(default=Profiling(), description="Measurements of the machine.")
    optimizations: Optimizations = Field(default=Optimizations(), description="Switches of older training loops.")
    integrations: Integrations | None = Field(default=None, description="Webhooks and Pachyderm.")
    slurm: SlurmConfig = Field(default=SlurmConfig(), description="Options for Slurm clusters.")
    pbs: PbsConfig = Field(default=PbsConfig(), description="Options for PBS clusters.")
    debug: bool = Field(default=False, description="Whether the training library logs verbosely.")

    def to_wire(self) -> dict[str, Any]:
        """The config as JSON-ready data, every key present, null for what is unset.

        Parsing the result gives an equal config, and a container can index every key it expects.
        """
        return self.model_dump(mode="json")
