"""Config policies: what administrators set, or limit, in the configurations of a workspace or of the whole cluster.

Pure: no I/O, no clock. Source: spec experiment-config.md §6, database-0.38.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, cast

from pydantic import Field, ValidationError

from workflows.config.base import INT64_MAX, JsonMap, Section
from workflows.config.check import check_written
from workflows.config.errors import ConfigError, render_path
from workflows.config.merge import merge_configs
from workflows.config.tasks import TaskConfigError, parse_task_config
from workflows.config.yamltext import parse_text
from workflows.lifecycle.task import TaskKind


class Workload(StrEnum):
    """What a policy is for: experiments, or all other tasks."""

    EXPERIMENT = "EXPERIMENT"
    NTSC = "NTSC"

    @property
    def slots(self) -> str:
        """The key of `resources` that says how many slots one of them takes."""
        return "slots_per_trial" if self is Workload.EXPERIMENT else "slots"


class SlotLimit(Section):
    """Of what one experiment or task may take."""

    max_slots: int | None = Field(default=None, ge=0, le=INT64_MAX)


class Constraints(Section):
    """What a configuration may ask for at most. `priority_limit`: no smaller number, as smaller ones go first."""

    resources: SlotLimit = SlotLimit()
    priority_limit: int | None = Field(default=None, ge=1, le=99)

    @property
    def max_slots(self) -> int | None:
        """None: without limit."""
        return self.resources.max_slots

    def problem(self, resources: Mapping[str, Any], workload: Workload) -> str | None:
        """What of a configuration's `resources` goes beyond; None if nothing does. What is absent is no problem."""
        for name in (workload.slots, "max_slots"):
            slots = resources.get(name)
            if self.max_slots is not None and isinstance(slots, int) and slots > self.max_slots:
                return f"resources.{name}: {slots}: a config policy allows {self.max_slots} slots (max_slots)"
        return self.priority_problem(resources.get("priority"))

    def priority_problem(self, priority: int | None) -> str | None:
        """Why a job may not have this priority; None if it may."""
        if priority is None or self.priority_limit is None or priority >= self.priority_limit:
            return None
        return f"resources.priority: {priority}: a config policy allows {self.priority_limit} to 99 (priority_limit)"


class ConfigPolicy(Section):
    """A policy as an administrator has written it."""

    invariant_config: JsonMap = Field(default_factory=dict[str, Any])
    constraints: Constraints = Constraints()

    def written(self) -> JsonMap:
        """What was said, and nothing else."""
        return self.model_dump(mode="json", exclude_unset=True)


#: Of what no administrator has said anything about.
NO_POLICY = ConfigPolicy()


def parse_policy(text: str, workload: Workload) -> ConfigPolicy:
    """Read and check a policy.

    Args:
        text: YAML or JSON: `invariant_config` with keys of a configuration, `constraints` with `priority_limit` and
            `resources.max_slots`.
        workload: Whose configurations it is for.

    Raises: ValueError, which names the key at fault.
    """
    try:
        value = parse_text(text).value
    except ConfigError as error:
        raise ValueError("; ".join(str(problem) for problem in error.problems)) from None
    if not isinstance(value, dict) or not value:
        raise ValueError("expected a map with invariant_config, constraints, or both")
    written = {key: part for key, part in cast(JsonMap, value).items() if part is not None}
    try:
        policy = ConfigPolicy.model_validate(written, strict=True)
    except ValidationError as error:
        raise ValueError("; ".join(map(_told, error.errors(include_url=False)))) from None
    _check_invariant(policy, workload)
    return policy


def combined(policies: Sequence[ConfigPolicy]) -> ConfigPolicy:
    """What several policies come to; where two speak, the first one wins: the cluster's goes before a workspace's."""
    result = ConfigPolicy()
    for policy in policies:
        ours, theirs = result.constraints, policy.constraints
        result = ConfigPolicy(
            invariant_config=merge_configs(result.invariant_config, policy.invariant_config),
            constraints=Constraints(
                resources=SlotLimit(max_slots=theirs.max_slots if ours.max_slots is None else ours.max_slots),
                priority_limit=theirs.priority_limit if ours.priority_limit is None else ours.priority_limit,
            ),
        )
    return result


def _check_invariant(policy: ConfigPolicy, workload: Workload) -> None:
    config = policy.invariant_config
    for key in ("workspace", "project"):
        if key in config:
            raise ValueError(f"invariant_config.{key}: a policy holds in its workspace, and can't name another place")
    if workload is Workload.EXPERIMENT:
        found = check_written(config)
        if found:
            raise ValueError("; ".join(f"invariant_config{_tail(each.path)}: {each.message}" for each in found))
    else:
        try:
            parse_task_config(TaskKind.COMMAND, config, {"entrypoint": ["true"]})
        except TaskConfigError as error:
            raise ValueError(f"invariant_config: {error}") from None
    problem = policy.constraints.problem(config.get("resources") or {}, workload)
    if problem is not None:
        raise ValueError(f"invariant_config.{problem}: nothing could be created by this policy")


def _tail(path: tuple[str | int, ...]) -> str:
    return render_path(path).removeprefix("<config>")


def _told(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{where}: there is no such key in a config policy"
    return f"{where}: {error['msg'].replace('Input should be', 'expected')}, found {str(error['input'])[:80]!r}"
