"""The configuration of a task that is no trial: a command, a notebook, a generic task. Source: spec tasks.md §1 and §6.

It shares the sections of containers with an experiment's. Pure: no I/O, no clock. Start with :func:`parse_task_config`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, cast

from pydantic import Field, ValidationError, field_validator

from workflows.config.base import INT64_MAX, JsonMap, Number, Section
from workflows.config.check import Finding
from workflows.config.durations import seconds_of
from workflows.config.errors import Path, render_path, suggest
from workflows.config.merge import merge_configs
from workflows.config.resources import BindMount, Device, Environment
from workflows.config.rules import container_rules
from workflows.lifecycle.task import INTERACTIVE, TaskKind

#: Of all words of an entrypoint together: it is handed over in one environment variable, and Linux takes 128 KiB.
LONGEST_ENTRYPOINT = 64 * 1024
#: Of a whole configuration, as JSON: each list of tasks reads it.
LONGEST_CONFIG = 2**20
_MOST_RESTARTS = 10_000
_MOST_ARGS, _LONGEST_ARGS = 200, 16 * 1024
_LONGEST_NAME = 1000
#: Keys of the configurations of both published generations that are accepted and dropped.
_IGNORED = ("slurm", "pbs")
#: Of a limit of its time.
_LONGEST_S = 365 * 86400
#: What a notebook may be asked about to find out whether it is idle.
IDLE_TYPES = ("kernels_or_terminals", "kernel_connections", "activity")


#: Of tasks that one comes after.
MOST_NEEDS = 50
AfterId = Annotated[str, Field(min_length=1, max_length=80)]


class TaskResources(Section):
    """How much the task needs, and its place among others. All of it is on one host."""

    slots: int = Field(default=1, ge=0, le=INT64_MAX, description="Slots (GPUs); 0 runs it on CPU in the aux pool.")
    resource_pool: str = Field(default="", description="Pool to run in; empty means the workspace's or cluster's.")
    priority: int | None = Field(default=None, ge=1, le=99, description="Place in the queue; smaller goes first.")
    weight: Number = Field(default=1, ge=0, description="Share of the pool under fair-share scheduling.")
    shm_size: int | None = Field(default=None, ge=0, le=INT64_MAX, description="Shared memory, in bytes or as 4G.")
    devices: list[Device] = Field(default=[], description="Devices of the machine.")


class TaskConfig(Section):
    """A validated configuration with every default filled in."""

    description: str = Field(default="", max_length=_LONGEST_NAME, description="What people see it called.")
    entrypoint: list[str] = Field(
        default=[], description="The command and its arguments; a single one is a line for the shell."
    )
    bind_mounts: list[BindMount] = Field(default=[], description="Folders of the machine that it sees.")
    environment: Environment = Field(default=Environment(), description="Image and variables.")
    resources: TaskResources = Field(default=TaskResources(), description="What it runs on.")
    work_dir: str | None = Field(default=None, description="Where it starts; not together with files.")
    debug: bool = Field(default=False, description="Whether to log more.")
    max_restarts: int = Field(default=0, ge=0, le=_MOST_RESTARTS, description="Starts after failures.")
    preemption_timeout: int = Field(default=0, ge=0, le=INT64_MAX, description="Seconds that it has to leave.")
    after: list[AfterId] = Field(
        default=[], max_length=MOST_NEEDS, description="Generic tasks and commands that complete before it runs."
    )
    after_any: list[AfterId] = Field(
        default=[], max_length=MOST_NEEDS, description="Those that end before it runs, in whatever way."
    )
    idle_timeout: str | None = Field(
        default=None, description="After so long without use a notebook or TensorBoard ends, as 20m; 0s: never."
    )
    max_lifetime: str | None = Field(
        default=None, description="After so long on its slots, all runs together, it ends, as 8h; 0s: never."
    )
    notebook_idle_type: str = Field(default=IDLE_TYPES[0], description="By what a notebook finds out that it is idle.")
    tensorboard_args: list[str] = Field(
        default=[], max_length=_MOST_ARGS, description="Further options of TensorBoard."
    )

    @field_validator("idle_timeout", "max_lifetime", mode="before")
    @classmethod
    def _limit(cls, value: Any) -> Any:
        return checked_limit(value)

    @field_validator("notebook_idle_type")
    @classmethod
    def _notebook_idle_type(cls, value: str) -> str:
        if value not in IDLE_TYPES:
            raise ValueError(f"invalid notebook idle type: {value[:80]} not in [{' '.join(IDLE_TYPES)}]")
        return value

    @field_validator("tensorboard_args")
    @classmethod
    def _tensorboard_args(cls, words: list[str]) -> list[str]:
        if any("\0" in word for word in words):
            raise ValueError("must not contain NUL characters")
        if sum(len(word.encode("utf-8", "surrogatepass")) + 1 for word in words) > _LONGEST_ARGS:
            raise ValueError(f"is longer than {_LONGEST_ARGS} bytes")
        return words

    @property
    def idle_timeout_s(self) -> float | None:
        """None: it never ends for that."""
        return _seconds(self.idle_timeout)

    @property
    def max_lifetime_s(self) -> float | None:
        """None: it never ends for that."""
        return _seconds(self.max_lifetime)

    @field_validator("entrypoint")
    @classmethod
    def _entrypoint(cls, words: list[str]) -> list[str]:
        if words and not words[0].strip():
            raise ValueError("must not be empty: expected a command and its arguments")
        if any("\0" in word for word in words):
            raise ValueError("must not contain NUL characters")
        size = sum(len(word.encode("utf-8", "surrogatepass")) + 1 for word in words)
        if size > LONGEST_ENTRYPOINT:
            raise ValueError(f"has {size} bytes, the limit is {LONGEST_ENTRYPOINT}: put it into a file of its context")
        return words


def checked_limit(value: Any) -> str:
    """A limit of a task's time: a duration, or 0s for none. Raises: ValueError."""
    seconds = seconds_of(value) if isinstance(value, str) else None
    if seconds is None or not (seconds == 0 or 1 <= seconds <= _LONGEST_S):
        raise ValueError(f"invalid duration: {str(value)[:80]}: expected 1s to 365d, such as 20m, or 0s for never")
    return value


def _seconds(limit: str | None) -> float | None:
    return (seconds_of(limit) if limit is not None else None) or None


class TaskConfigError(ValueError):
    """The configuration can't be used; the text holds everything that is wrong with it, a line each."""


def parse_task_config(kind: TaskKind, *layers: Mapping[str, Any]) -> TaskConfig:
    """Merge and validate the configuration of a task.

    Args:
        kind: Of the task.
        layers: As written; each goes before those behind it: the request's, a template's, the cluster's.

    Raises: TaskConfigError.
    """
    merged = _merged([dict(layer) for layer in layers])
    if kind in INTERACTIVE:
        merged.pop("entrypoint", None)  # it has a program of its own
    text = json.dumps(merged)
    if len(text) > LONGEST_CONFIG:
        raise TaskConfigError(f"the configuration has {len(text)} bytes as JSON, the limit is {LONGEST_CONFIG}")
    findings = [*_rules(merged), *_misspelt(merged)]
    if kind not in INTERACTIVE and merged.get("entrypoint", []) == []:
        told = "must not be empty" if "entrypoint" in merged else "field required"
        findings.append(Finding(("entrypoint",), f"{told}: expected a command and its arguments"))
    findings += _of_needs(kind, merged)
    try:
        config = TaskConfig.model_validate_json(text, strict=True)  # `true` is no number
    except ValidationError as error:
        known = [finding.path for finding in findings]
        findings += [each for each in _of_schema(error) if each.path not in known]
    else:
        if not findings:
            return config
    told = "\n".join(f"{render_path(each.path)}: {each.message}" for each in findings)
    raise TaskConfigError(f"invalid {kind.value.lower()} configuration: {told}")


def _merged(layers: list[JsonMap]) -> JsonMap:
    """One map. Sections of a wrong type are left for the schema to refuse."""
    slots = [_map(layer.get("resources")).get("slots") for layer in layers]
    merged: JsonMap = {}
    for layer in layers:
        if isinstance(layer.get("entrypoint"), str):
            layer["entrypoint"] = [layer["entrypoint"]]
        merged = merge_configs(merged, layer)
    merged = {key: value for key, value in merged.items() if key not in _IGNORED}
    named = next((each for each in slots if each is not None), None)
    if named is not None and isinstance(merged.get("resources"), dict):  # experiments drop this key
        merged["resources"] = {**merged["resources"], "slots": named}
    if isinstance(merged.get("resources"), dict):
        merged["resources"].pop("max_slots", None)
    return merged


def _rules(merged: JsonMap) -> Iterator[Finding]:
    yield from container_rules(merged)
    if "is_single_node" in _map(merged.get("resources")):
        yield Finding(("resources", "is_single_node"), "can't be set: all of such a task is on one host")


def _of_needs(kind: TaskKind, merged: JsonMap) -> Iterator[Finding]:
    named = [(key, merged[key]) for key in ("after", "after_any") if merged.get(key)]
    for key, _ in named:
        if kind is not TaskKind.GENERIC:
            yield Finding((key,), "can't be set: only generic tasks wait for the end of others")
    count = sum(len(cast("list[Any]", value)) for _, value in named if isinstance(value, list))
    if count > MOST_NEEDS:
        yield Finding((named[-1][0],), f"{count} tasks to come after: the limit is {MOST_NEEDS}")


def _misspelt(merged: JsonMap) -> Iterator[Finding]:
    yield from _unknown((), merged, TaskConfig.model_fields)
    yield from _unknown(("resources",), _map(merged.get("resources")), [*TaskResources.model_fields, "is_single_node"])


def _unknown(path: Path, section: JsonMap, known: Iterable[str]) -> Iterator[Finding]:
    for key in section.keys() - set(known):
        close = suggest(key, known)
        yield Finding((*path, key), f"there is no such key{f' (did you mean {close}?)' if close else ''}")


def _of_schema(error: ValidationError) -> Iterator[Finding]:
    for each in error.errors(include_url=False):
        path: Path = tuple(each["loc"])
        message = each["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        yield Finding(path, f"{message[:1].lower()}{message[1:]}, found {str(each.get('input'))[:80]!r}")


def _map(value: Any) -> JsonMap:
    return cast(JsonMap, value) if isinstance(value, dict) else {}
