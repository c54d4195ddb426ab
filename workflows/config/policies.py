"""The smaller sections: log policies, retention, profiling, optimizations, integrations.

Source: spec experiment-config.md §2, §13-§15.
"""

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from workflows.config.base import INT64_MAX, Section

LOG_ACTIONS = ("cancel_retries", "exclude_node")
LogAction = Literal["cancel_retries", "exclude_node"]


class LogPolicy(Section):
    """What happens when a line of the log matches a pattern; a name alone switches the policy of that name off."""

    name: str | None = Field(default=None, description="Label that the run and the task get on a match.")
    pattern: str | None = Field(default=None, description="Regular expression (RE2) searched in each line.")
    action: (
        Annotated[
            LogAction,
            WithJsonSchema(
                {
                    "anyOf": [
                        {"enum": list(LOG_ACTIONS)},
                        {
                            "type": "object",
                            "properties": {"type": {"enum": list(LOG_ACTIONS)}},
                            "required": ["type"],
                            "additionalProperties": False,
                        },
                    ]
                }
            ),
        ]
        | None
    ) = Field(
        default=None,
        description="cancel_retries: no restart after a failure; exclude_node: never again on that machine.",
    )


BUILTIN_LOG_POLICIES: list[LogPolicy] = [
    LogPolicy(name="CUDA OOM", pattern=".*CUDA out of memory.*"),
    LogPolicy(name="ECC Error", pattern=".*uncorrectable ECC error encountered.*"),
]


class RetentionPolicy(Section):
    """How long logs are kept."""

    log_retention_days: int | None = Field(
        default=None,
        ge=-1,
        le=32767,
        description="Days from the task's end; -1 without a limit, 0 until the next clean-up.",
    )


class Reproducibility(Section):
    """What makes two runs of the experiment alike."""

    experiment_seed: int = Field(ge=0, le=2**32 - 1, description="Seed of the search and of every trial.")


class Profiling(Section):
    """Measurements of the machine during training."""

    enabled: bool = Field(default=False, description="Whether to measure.")
    begin_on_batch: int = Field(default=0, ge=0, le=INT64_MAX, description="First batch measured.")
    end_after_batch: int | None = Field(default=None, ge=0, le=INT64_MAX, description="Last batch measured.")
    sync_timings: bool = Field(default=True, description="Whether to wait for the GPU before taking the time.")


class Optimizations(Section):
    """Switches of the distributed training loops; without effect in newer code."""

    aggregation_frequency: int = Field(default=1, ge=1, le=INT64_MAX, description="Batches between exchanges.")
    average_aggregated_gradients: bool = Field(default=True, description="Whether gradients are averaged over them.")
    average_training_metrics: bool = Field(default=True, description="Whether workers' metrics are averaged.")
    gradient_compression: bool = Field(default=False, description="Whether gradients are compressed.")
    grad_updates_size_file: str | None = Field(default=None, description="File with the sizes of gradient updates.")
    mixed_precision: Literal["O0", "O1", "O2", "O3"] = Field(default="O0", description="Level of mixed precision.")
    tensor_fusion_threshold: int = Field(default=64, ge=0, le=INT64_MAX, description="Megabytes fused at once.")
    tensor_fusion_cycle_time: int = Field(default=1, ge=0, le=INT64_MAX, description="Milliseconds between fusions.")
    auto_tune_tensor_fusion: bool = Field(default=False, description="Whether the fusion tunes itself.")


class WebhookSelection(Section):
    """Which webhooks fire for the experiment."""

    webhook_id: list[int] | None = Field(default=None, description="Webhooks by id.")
    webhook_name: list[str] | None = Field(default=None, description="Webhooks by name.")
    exclude: bool = Field(default=False, description="Whether none fires at all.")


class PachydermServer(Section):
    """Address of the Pachyderm server."""

    host: str = Field(description="Host name.")
    port: int = Field(ge=0, le=65535, description="Port.")


class PachydermProxy(Section):
    """Address under which users reach Pachyderm."""

    scheme: str = Field(description="http or https.")
    host: str = Field(description="Host name.")
    port: int = Field(ge=0, le=65535, description="Port.")


class PachydermDataset(Section):
    """The version of the data."""

    project: str = Field(description="Project.")
    repo: str = Field(description="Repository.")
    commit: str = Field(description="Commit.")
    branch: str = Field(description="Branch.")
    token: str = Field(description="Token.")


class Pachyderm(Section):
    """Data in Pachyderm; passed to the task."""

    pachd: PachydermServer = Field(description="The server.")
    proxy: PachydermProxy = Field(description="The users' address of it.")
    dataset: PachydermDataset = Field(description="The data.")


class Integrations(Section):
    """Other systems."""

    webhooks: WebhookSelection | None = Field(default=None, description="Which webhooks fire.")
    pachyderm: Pachyderm | None = Field(default=None, description="Where the data comes from.")
