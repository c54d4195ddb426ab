"""Traces of jobs for `det dev simulate-pool`: read, checked, and drawn where they only say how."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from workflows.config import ConfigError, apply_overrides
from workflows.scheduling.settings import PoolSettings
from workflows.scheduling.simulate import Job, Trace

_MOST_PROBLEMS = 10

_Model = TypeVar("_Model", bound=BaseModel)
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _named(users: Any) -> Any:
    """A number of users as their names."""
    if isinstance(users, list):
        return users  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(users, int) or isinstance(users, bool) or users < 1:
        raise ValueError("expected names, or a number of at least 1")
    return [f"user-{number}" for number in range(1, users + 1)]


class Lognormal(BaseModel):
    """Durations: half of them are below the median, two thirds within a factor of e^sigma of it."""

    model_config = ConfigDict(extra="forbid")

    median: _Positive
    sigma: float = Field(default=0.0, ge=0, le=10)


class Generate(BaseModel):
    """Jobs to be drawn. Maps are of values to weights; the same seed draws the same jobs."""

    model_config = ConfigDict(extra="forbid")

    jobs: int = Field(ge=1, le=10_000_000)
    seed: int = 0
    over_s: _Positive | None = None  # they come evenly within this time
    arrival_per_hour: _Positive | None = None  # or one after the other at this rate
    slots: dict[Annotated[int, Field(ge=0)], _Positive] = Field(default={1: 1.0}, min_length=1)
    duration_s: Lognormal
    users: Annotated[list[str], Field(min_length=1), BeforeValidator(_named)] = ["user-1"]
    priorities: dict[Annotated[int, Field(ge=1, le=99)], _Positive] = Field(default_factory=dict[int, float])

    @model_validator(mode="after")
    def _has_one_rate(self) -> Self:
        if (self.over_s is None) == (self.arrival_per_hour is None):
            raise ValueError("expected either over_s or arrival_per_hour")
        return self

    def drawn(self) -> list[Job]:
        """The jobs, the first to come first."""
        rng = random.Random(self.seed)
        sizes, weights = list(self.slots), list(self.slots.values())
        priorities = list(self.priorities) or [None]
        odds = list(self.priorities.values()) or [1.0]
        return [
            Job(
                name=f"generated-{number}",
                at_s=round(at_s, 3),
                slots=rng.choices(sizes, weights)[0],
                duration_s=round(rng.lognormvariate(math.log(self.duration_s.median), self.duration_s.sigma), 3),
                user=rng.choice(self.users),
                priority=rng.choices(priorities, odds)[0],
            )
            for number, at_s in enumerate(self._arrivals(rng), 1)
        ]

    def _arrivals(self, rng: random.Random) -> list[float]:
        if self.over_s is not None:
            return sorted(rng.uniform(0, self.over_s) for _ in range(self.jobs))
        now, times = 0.0, list[float]()
        for _ in range(self.jobs):
            now += rng.expovariate((self.arrival_per_hour or 1.0) / 3600)
            times.append(now)
        return times


class TraceFile(Trace):
    """A trace as it is written: jobs by name, jobs to be drawn, or both."""

    generate: Generate | None = None

    @model_validator(mode="after")
    def _has_jobs(self) -> Self:
        if not self.jobs and self.generate is None:
            raise ValueError("expected jobs, or generate to draw some")
        return self


def read_trace(path: Path) -> Trace:
    """Read a trace from YAML or JSON, with its jobs drawn.

    Raises: ValueError if it can't be read or used: each field that is wrong, its value, and what was expected.
    """
    file = _validated(TraceFile, _read(path), f"the trace {str(path)!r} can't be used")
    drawn = file.generate.drawn() if file.generate is not None else []
    fields = {name: getattr(file, name) for name in Trace.model_fields if name in file.model_fields_set}
    return _validated(Trace, fields | {"jobs": [*file.jobs, *drawn]}, f"the trace {str(path)!r} can't be used")


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"the trace {str(path)!r} can't be read: {reason}; give the path of a YAML file.") from None
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)  # all JSON is YAML, but much slower to read as such
        except ValueError:
            pass
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        loader: Any = YAML(typ="safe", pure=True)
        return loader.load(text)
    except (YAMLError, ValueError) as error:
        raise ValueError(f"the trace {str(path)!r} is not YAML: {error}") from None


def changed(trace: Trace, change: str) -> Trace:
    """The trace with other settings: `scheduler=fair_share,preemption=true`."""
    origin = f"--compare {change!r}"
    parts = re.split(r",(?=[^=,{}\[\]]+=)", change)
    for part in parts:
        if not all(part.partition("=")[:2]):
            raise ValueError(
                f"{origin}: expected key=value of the settings, such as scheduler=fair_share, but found {part!r}"
            )
    written = trace.settings.model_dump(mode="json", exclude_unset=True)
    try:
        settings = apply_overrides(written, [part.strip().removeprefix("settings.") for part in parts])
    except ConfigError as error:
        raise ValueError("\n".join(f"{origin}: {p.path}: {p.message}" for p in error.problems)) from None
    return trace.model_copy(update={"settings": _validated(PoolSettings, settings, origin)})


def _validated(model: type[_Model], value: Any, origin: str) -> _Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = [_sentence(each) for each in error.errors(include_url=False, include_context=False)]
    more = [f"and {len(problems) - _MOST_PROBLEMS} more"] if len(problems) > _MOST_PROBLEMS else []
    raise ValueError("\n".join(f"{origin}: {problem}" for problem in problems[:_MOST_PROBLEMS] + more)) from None


_WHAT = {
    "extra_forbidden": "there is no such field",
    "missing": "this is required",
    "model_type": "expected `name: value` lines",
    "model_attributes_type": "expected `name: value` lines",
}


def _sentence(problem: Mapping[str, Any]) -> str:
    """`jobs[2].slots: -1: expected …`."""
    place = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"] if part != "[key]"
    ).removeprefix(".")
    value: Any = problem["input"]
    is_shown = (isinstance(value, str | int | float) or value is None) and problem["type"] != "missing"
    what = _WHAT.get(problem["type"])
    if what is None:
        what = re.sub("^Input should be ", "expected ", problem["msg"]).removeprefix("Value error, ")
    return ": ".join([*([place] if place else []), *([repr(value)] if is_shown else []), what])
