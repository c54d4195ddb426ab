"""Failure policies: what the next run of a trial has instead, after a failure that it would have again. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from workflows.lifecycle.allocation import AllocationEnd, EndCause, ExitKind

Failure = Literal["out_of_memory", "crash", "hang", "bad_gpu"]

#: What frameworks say when a device has no memory left; the kernel's word comes with a cause of its own.
_NO_MEMORY = re.compile(
    r"\b(OutOfMemoryError|out of memory|MemoryError|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED)\b"
)


#: Causes that are a failure by themselves.
_BY_CAUSE: dict[EndCause, Failure] = {
    EndCause.OUT_OF_MEMORY: "out_of_memory",
    EndCause.CRASH: "crash",
    EndCause.HANG: "hang",
    EndCause.BAD_GPU: "bad_gpu",
}


class FailurePolicy(BaseModel):
    """What is tried after which failure, and how often.

    Attributes:
        failure: After which.
        multiply: Factors of hyperparameters (`name`, `group.name`).
        attempts: How often.
        pool: Where the next runs ask for slots; empty: where they did.
        slots: That they ask for; 0: as many as they did.
    """

    model_config = ConfigDict(frozen=True)

    failure: Failure
    multiply: dict[str, float]
    attempts: int
    pool: str = ""
    slots: int = 0


class Remedy(BaseModel):
    """What the next run has instead: the factors of all remedies so far, pool and slots, and a sentence about them."""

    model_config = ConfigDict(frozen=True)

    policy: int  # its place in the list
    factors: dict[str, float]
    pool: str = ""
    slots: int = 0
    message: str


def failure_of(end: AllocationEnd) -> Failure | None:
    """The failure that policies may name; None: any other, or none."""
    if end.kind is not ExitKind.FAILED:
        return None
    return "out_of_memory" if _NO_MEMORY.search(end.message) else _BY_CAUSE.get(end.cause)


def remedy_of(
    end: AllocationEnd, policies: Sequence[FailurePolicy], attempts: Mapping[int, int], factors: Mapping[str, float]
) -> Remedy | None:
    """What to try after a failure; None: no policy is about it, or it has been tried as often as it may be.

    Args:
        end: of the run.
        policies: of the experiment; the first one about this failure that has attempts left counts.
        attempts: made so far, by the policy's place.
        factors: in force so far.
    """
    failure = failure_of(end)
    for place, policy in enumerate(policies):
        made = attempts.get(place, 0)
        if policy.failure == failure and made < policy.attempts:
            after = {**factors, **{name: factors.get(name, 1.0) * by for name, by in policy.multiply.items()}}
            has = [f"{name} x {factor:g}" for name, factor in after.items()]
            has += [f"{policy.slots} slots"] if policy.slots else []
            has += [f"the pool `{policy.pool}`"] if policy.pool else []
            then = f"its next run has {', '.join(has)}" if has else "it starts again"
            elsewhere = ", on another machine" if failure == "bad_gpu" else ""
            said = f"attempt {made + 1} of {policy.attempts} of its policy for {failure}: {then}{elsewhere}"
            return Remedy(policy=place, factors=after, pool=policy.pool, slots=policy.slots, message=said)
    return None


def multiplied(hparams: Mapping[str, Any], factors: Mapping[str, float] | None) -> dict[str, Any]:
    """Hyperparameters with their factors. Whole numbers stay whole, and at least 1; what is no number stays."""
    found = dict(hparams)
    for name, factor in (factors or {}).items():
        *groups, last = name.split(".")
        place = found
        for group in groups:
            inner: Any = place.get(group)
            copied: dict[str, Any] = dict(inner) if isinstance(inner, Mapping) else {}  # pyright: ignore[reportUnknownArgumentType]
            place[group] = place = copied
        value: Any = place.get(last)
        if isinstance(value, int) and not isinstance(value, bool):
            place[last] = max(1, round(value * factor))
        elif isinstance(value, float):
            place[last] = value * factor
    return found
