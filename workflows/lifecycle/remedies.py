"""Failure policies: what the next run of a trial has instead, after a failure that it would have again. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from workflows.lifecycle.allocation import AllocationEnd, EndCause, ExitKind

Failure = Literal["out_of_memory", "crash"]

#: What frameworks say when a device has no memory left; the kernel's word comes with a cause of its own.
_NO_MEMORY = re.compile(
    r"\b(OutOfMemoryError|out of memory|MemoryError|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED)\b"
)


class FailurePolicy(BaseModel):
    """After which failure, by which factors hyperparameters (`name`, `group.name`) are multiplied, and how often."""

    model_config = ConfigDict(frozen=True)

    failure: Failure
    multiply: dict[str, float]
    attempts: int


class Remedy(BaseModel):
    """What the next run has instead: the factors of all remedies so far, and a sentence about them."""

    model_config = ConfigDict(frozen=True)

    policy: int  # its place in the list
    factors: dict[str, float]
    message: str


def failure_of(end: AllocationEnd) -> Failure | None:
    """The failure that policies may name; None: any other, or none."""
    if end.kind is not ExitKind.FAILED:
        return None
    if end.cause is EndCause.OUT_OF_MEMORY or _NO_MEMORY.search(end.message):
        return "out_of_memory"
    return "crash" if end.cause is EndCause.CRASH else None


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
            has = ", ".join(f"{name} x {factor:g}" for name, factor in after.items())
            said = f"attempt {made + 1} of {policy.attempts} of its policy for {failure}: its next run has {has}"
            return Remedy(policy=place, factors=after, message=said)
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
