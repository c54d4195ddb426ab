"""The section `failure_policies` of a configuration: what is tried after a failure, before it costs a restart."""

from __future__ import annotations

from pydantic import Field

from workflows.config.base import Section
from workflows.lifecycle.remedies import Failure
from workflows.lifecycle.remedies import FailurePolicy as Decided

#: Policies of one experiment, hyperparameters of one policy, and its attempts.
MOST_POLICIES, MOST_FACTORS, MOST_ATTEMPTS = 10, 20, 100


class FailurePolicy(Section):
    """What the next run of a trial has instead, after a failure that it would have again."""

    failure: Failure = Field(description="out_of_memory, of a device or the host; crash: by a signal such as SIGSEGV.")
    multiply: dict[str, float] = Field(
        description="Factors of hyperparameters, such as batch_size: 0.5; those of a map as group.name."
    )
    attempts: int = Field(
        default=3, ge=1, le=MOST_ATTEMPTS, description="How often a trial tries it; further failures cost restarts."
    )

    @property
    def decided(self) -> Decided:
        """As it is decided by."""
        return Decided(failure=self.failure, multiply=self.multiply, attempts=self.attempts)
