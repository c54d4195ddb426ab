"""The section `failure_policies` of a configuration: what is tried after a failure, before it costs a restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from workflows.config.base import INT64_MAX, Section
from workflows.config.durations import seconds_of
from workflows.lifecycle.remedies import Failure
from workflows.lifecycle.remedies import FailurePolicy as Decided

#: Policies of one experiment, hyperparameters of one policy, and its attempts.
MOST_POLICIES, MOST_FACTORS, MOST_ATTEMPTS = 10, 20, 100


#: Seconds of silence that a policy may name.
LEAST_SILENCE_S, MOST_SILENCE_S = 10.0, 30 * 86400.0
SILENCE_MESSAGE = "must be a duration of 10s to 30d, such as 30m"
_DURATION = {
    "type": "string",
    "pattern": r"^([0-9]{1,12}(\.[0-9]{1,9})?(s|m|h|d))+$",
    "x-pattern-message": SILENCE_MESSAGE,
}


class NextResources(Section):
    """Where the next runs of a trial are, and what they have there; what is not named stays."""

    resource_pool: str | None = Field(default=None, description="The pool that they ask for slots.")
    slots_per_trial: int | None = Field(default=None, ge=1, le=INT64_MAX, description="Slots that they ask for.")


class FailurePolicy(Section):
    """What the next run of a trial has instead, after a failure that it would have again."""

    failure: Failure = Field(
        description="out_of_memory, of a device or the host; crash: by a signal such as SIGSEGV; hang: silent for"
        " silent_for; bad_gpu: an error of the GPU itself, whose machine the trial avoids from then on."
    )
    silent_for: Annotated[str, WithJsonSchema(_DURATION)] | None = Field(
        default=None, description="Of a hang: how long a trial may report and write nothing, such as 30m."
    )
    multiply: dict[str, float] = Field(
        default={}, description="Factors of hyperparameters, such as batch_size: 0.5; those of a map as group.name."
    )
    resources: NextResources | None = Field(default=None, description="Another pool, or other slots.")
    attempts: int = Field(
        default=3, ge=1, le=MOST_ATTEMPTS, description="How often a trial tries it; further failures cost restarts."
    )

    @property
    def decided(self) -> Decided:
        """As it is decided by."""
        next_ = self.resources or NextResources()
        return Decided(
            failure=self.failure,
            multiply=self.multiply,
            attempts=self.attempts,
            pool=next_.resource_pool or "",
            slots=next_.slots_per_trial or 0,
        )


def next_pools(config: Mapping[str, Any]) -> list[str]:
    """The pools that the failure policies of a complete configuration have trials go on in."""
    policies: list[dict[str, Any]] = config.get("failure_policies") or []
    resources: list[dict[str, Any]] = [policy.get("resources") or {} for policy in policies]
    return list(dict.fromkeys(str(each["resource_pool"]) for each in resources if each.get("resource_pool")))


def is_silence(text: str) -> bool:
    """Whether a text is a duration that `silent_for` may have."""
    seconds = seconds_of(text)
    return seconds is not None and LEAST_SILENCE_S <= seconds <= MOST_SILENCE_S
