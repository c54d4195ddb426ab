"""What a run of a campaign does next: a function of its definition and of what became of its steps. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field

from workflows.campaigns.definition import Definition, Step, StepKind
from workflows.campaigns.expressions import ExpressionError, Lookup, MissingValue, holds, lookup_in, substitute

#: Of a step's outputs: longer texts and further values are left out.
_LONGEST_OUTPUT, _MOST_OUTPUTS, _DEEPEST_OUTPUT = 4000, 200, 8


class StepState(StrEnum):
    """The stored states of a step in one run."""

    WAITING = "WAITING"  # for those before it
    LAUNCHING = "LAUNCHING"  # what it does is ordered, and not there yet
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    REUSED = "REUSED"  # an earlier run did the same
    SKIPPED = "SKIPPED"
    ERROR = "ERROR"
    CANCELED = "CANCELED"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing more comes of it."""
        return self not in (StepState.WAITING, StepState.LAUNCHING, StepState.RUNNING)


class RunState(StrEnum):
    """The stored states of a run."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    CANCELING = "CANCELING"  # its experiments store checkpoints and end
    KILLING = "KILLING"
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended for good."""
        return self in (RunState.COMPLETED, RunState.CANCELED, RunState.ERROR)

    @property
    def is_stopping(self) -> bool:
        """Whether it ends at a user's request."""
        return self in (RunState.CANCELING, RunState.KILLING)


#: The states from which a user's request leads to each; a run that is there already stays so.
COMMANDS: dict[str, tuple[RunState, frozenset[RunState]]] = {
    "pause": (RunState.PAUSED, frozenset({RunState.ACTIVE})),
    "activate": (RunState.ACTIVE, frozenset({RunState.PAUSED})),
    "cancel": (RunState.CANCELING, frozenset({RunState.ACTIVE, RunState.PAUSED})),
    "kill": (RunState.KILLING, frozenset({RunState.ACTIVE, RunState.PAUSED, RunState.CANCELING})),
}


class StepOutcome(BaseModel):
    """What became of a step so far.

    Attributes:
        state: Of the step.
        attempt: How often it was launched.
        digest: Of all that decides what it does; empty until it was prepared.
        outputs: What it leaves for others.
        message: Why it is in its state, in a sentence.
        experiment_id: What it runs, if that is an experiment.
        task_id: The same for a task.
        reused_from: The number of the run that did it.
    """

    state: StepState = StepState.WAITING
    attempt: int = 0
    digest: str = ""
    outputs: dict[str, Any] = Field(default_factory=dict[str, Any])
    message: str = ""
    experiment_id: int | None = None
    task_id: str | None = None
    reused_from: int | None = None

    @property
    def identity(self) -> str:
        """What it came to: two steps with the same one left the same."""
        if self.state not in (StepState.COMPLETED, StepState.REUSED):
            return self.state.value
        known = (self.outputs.get("id"), self.outputs.get("model"), self.outputs.get("version"))
        return ":".join(str(each) for each in known if each is not None)


@dataclass(frozen=True)
class Prepared:
    """A step that can be launched: its configuration without references, and the digest of what decides it."""

    config: dict[str, Any]
    digest: str


@dataclass(frozen=True)
class Moves:
    """What follows from the outcomes so far.

    Attributes:
        ended: Steps that end without being launched, with how and why.
        ready: Steps to launch, or to take from an earlier run.
        state: The state of the run, once all of its steps have ended.
    """

    ended: dict[str, tuple[StepState, str]] = field(default_factory=dict[str, tuple[StepState, str]])
    ready: dict[str, Prepared] = field(default_factory=dict[str, Prepared])
    state: RunState | None = None


@dataclass(frozen=True)
class Scope:
    """What references of a run mean, but for its steps.

    Attributes:
        params: Its parameters.
        run: Of the run itself, by the names of `RUN_FIELDS`.
        context: Digest of the files that its steps run with.
    """

    params: Mapping[str, Any]
    run: Mapping[str, Any]
    context: str = ""

    def lookup(self, outcomes: Mapping[str, StepOutcome]) -> Lookup:
        """The values of references."""
        steps = {name: {**outcome.outputs, "state": outcome.state.value} for name, outcome in outcomes.items()}
        return lookup_in({"steps": steps, "params": self.params, "run": self.run})


def advance(definition: Definition, outcomes: Mapping[str, StepOutcome], state: RunState, scope: Scope) -> Moves:
    """What a run does next.

    Args:
        definition: Of the campaign, in the version of the run.
        outcomes: Of all steps.
        state: What users want of the run.
        scope: What references mean.
    """
    now = dict(outcomes)
    moves = Moves()
    for name in definition.order:
        if now[name].state is not StepState.WAITING:
            continue
        end = _end_without(definition, name, now, state)
        if end is None and state is RunState.ACTIVE and all(now[b].state.is_terminal for b in definition.before[name]):
            prepared = _prepare(definition, name, now, scope)
            if isinstance(prepared, Prepared):
                moves.ready[name] = prepared
            else:
                end = prepared
        if end is not None:
            moves.ended[name] = end
            now[name] = now[name].model_copy(update={"state": end[0], "message": end[1]})
    if all(outcome.state.is_terminal for outcome in now.values()):
        return Moves(moves.ended, {}, _final(definition, now, state))
    return moves


def _stopper(definition: Definition, outcomes: Mapping[str, StepOutcome]) -> str | None:
    """The step whose failure ends the run, if one has failed."""
    failed = (StepState.ERROR, StepState.CANCELED)
    steps = definition.steps
    return next((name for name in steps if outcomes[name].state in failed and steps[name].if_failed == "stop"), None)


def _end_without(
    definition: Definition, name: str, outcomes: Mapping[str, StepOutcome], state: RunState
) -> tuple[StepState, str] | None:
    if state.is_stopping:
        return StepState.CANCELED, "the run was canceled"
    stopper = _stopper(definition, outcomes)
    return None if stopper is None else (StepState.SKIPPED, f"step {stopper} failed")


def _final(definition: Definition, outcomes: Mapping[str, StepOutcome], state: RunState) -> RunState:
    if state.is_stopping:
        return RunState.CANCELED
    return RunState.COMPLETED if _stopper(definition, outcomes) is None else RunState.ERROR


def _prepare(
    definition: Definition, name: str, outcomes: Mapping[str, StepOutcome], scope: Scope
) -> Prepared | tuple[StepState, str]:
    """A step with its references replaced; or how it ends instead, and why."""
    step, look = definition.steps[name], scope.lookup(outcomes)
    try:
        if step.condition is not None and not holds(step.condition, look):
            return StepState.SKIPPED, f"its condition does not hold: {step.when}"
        config = substitute(step.work, look)
    except MissingValue as error:
        origin = error.reference.step
        because = "" if origin is None else f", step {origin} is {outcomes[origin].state.value}"
        return StepState.SKIPPED, f"{error}{because}"
    except ExpressionError as error:
        return StepState.ERROR, str(error)
    before = {other: outcomes[other].identity for other in definition.before[name]}
    return Prepared(config, digest_of(step, config, scope.context, before))


def digest_of(step: Step, config: Mapping[str, Any], context: str, before: Mapping[str, str]) -> str:
    """Digest of all that decides what a step does: 64 hexadecimal digits. The files count where it runs code.

    Args:
        step: As it was written.
        config: Its configuration without references.
        context: Digest of the files.
        before: What the steps before it came to, by name.
    """
    inputs = {
        "kind": step.kind.value,
        "config": config,
        "template": step.template,
        "context": "" if step.kind is StepKind.REGISTER else context,
        "before": before,
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def bounded(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Outputs as they are kept: long texts and whatever is deep or beyond the limit of values are left out."""
    budget = [_MOST_OUTPUTS]
    return _bounded(outputs, budget, 0)


def _bounded(value: Mapping[str, Any], budget: list[int], depth: int) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, item in value.items():
        if budget[0] <= 0:
            break
        budget[0] -= 1
        if isinstance(item, Mapping):
            if depth < _DEEPEST_OUTPUT:
                kept[key] = _bounded(item, budget, depth + 1)  # pyright: ignore[reportUnknownArgumentType]
        elif len(json.dumps(item, default=str)) <= _LONGEST_OUTPUT:
            kept[key] = item
    return kept
