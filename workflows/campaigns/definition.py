"""What a campaign is: its steps, what they come after, its parameters and its schedule. Read from YAML, and checked.

Everything that can be known before a run is refused here: unknown steps, cycles, outputs that a step does not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import ConfigDict, Field, ValidationError

from workflows.campaigns.cron import Cron, CronError, parse_cron
from workflows.campaigns.expressions import (
    Condition,
    ExpressionError,
    Reference,
    condition_references,
    parse_condition,
    references,
)
from workflows.config.base import Section
from workflows.config.durations import seconds_of
from workflows.config.errors import ConfigError, Path, suggest
from workflows.config.yamltext import Document, parse_text

MOST_STEPS = 64
MOST_PARAMS = 64
MOST_REFERENCES = 1000
MOST_RETRIES = 10
MOST_PROBLEMS = 50
#: Characters of a definition as it is written, configurations that it names included.
LONGEST_TEXT = 200_000
_LONGEST_VALUE = 4000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
#: The longest that a missed time of a schedule is caught up with.
_MOST_CATCH_UP_S = 30 * 86400.0


class StepKind(StrEnum):
    """What a step does."""

    EXPERIMENT = "experiment"
    TASK = "task"
    REGISTER = "register"


class Overlap(StrEnum):
    """What happens at a time of the schedule while the run before it has not ended."""

    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    CANCEL_OTHER = "cancel_other"
    ALLOW_ALL = "allow_all"


#: What each kind of step leaves for those that come after it, and of which type; "map" is followed by further names.
OUTPUTS: dict[StepKind, dict[str, str]] = {
    StepKind.EXPERIMENT: {
        "id": "number",
        "state": "text",
        "best_trial": "trial",
        "best_checkpoint": "checkpoint",
        "latest_checkpoint": "checkpoint",
        "metric": "number",
        "metrics": "map",
        "hparams": "map",
    },
    StepKind.TASK: {"id": "text", "state": "text", "exit_code": "number"},
    StepKind.REGISTER: {"model": "text", "version": "number", "checkpoint": "checkpoint", "state": "text"},
}
#: What a run says of itself.
RUN_FIELDS = ("number", "time", "date")
#: Where a reference has to be of one type: the end of its path in an experiment's configuration.
_TYPED: dict[tuple[str, ...], str] = {
    ("searcher", "source_checkpoint_uuid"): "checkpoint",
    ("searcher", "source_trial_id"): "trial",
}


class Schedule(Section):
    """When runs begin by themselves."""

    cron: str = Field(
        description="Five fields: minute, hour, day of month, month, day of week; or @daily and the like."
    )
    time_zone: str = Field(default="UTC", max_length=100, description="Such as Europe/Berlin.")
    overlap: Overlap = Field(default=Overlap.SKIP, description="While the run before has not ended.")
    catch_up: str = Field(
        default="1h", max_length=40, description="Times that were missed, while the cluster was down, begin this late."
    )
    reuse: bool = Field(default=False, description="Whether its runs take over what earlier runs did.")

    @property
    def catch_up_s(self) -> float:
        """`catch_up` in seconds."""
        return seconds_of(self.catch_up) or 0.0

    def parsed(self) -> Cron:
        """`cron` as it was read when it was checked."""
        return parse_cron(self.cron)


class Registration(Section):
    """A checkpoint that becomes a version of a model. The model is made if there is none of that name."""

    checkpoint: str = Field(min_length=1, max_length=300)
    model: str = Field(min_length=1, max_length=300)
    name: str = Field(default="", max_length=300)
    comment: str = Field(default="", max_length=4000)
    labels: list[str] = Field(default=[], max_length=100)
    metadata: dict[str, Any] = {}


class Step(Section):
    """One step. Exactly one of `experiment`, `task` and `register` says what it does."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)

    experiment: dict[str, Any] | None = None
    task: dict[str, Any] | None = None
    registration: Registration | None = Field(default=None, alias="register")
    template: str = Field(default="", max_length=80)
    after: list[str] = []
    when: str | None = None
    retries: int = Field(default=0, ge=0, le=MOST_RETRIES)
    if_failed: Literal["stop", "continue"] = "stop"
    reuse: bool = True

    @property
    def kind(self) -> StepKind:
        """What it does."""
        if self.experiment is not None:
            return StepKind.EXPERIMENT
        return StepKind.TASK if self.task is not None else StepKind.REGISTER

    @property
    def work(self) -> dict[str, Any]:
        """The configuration of what it does, with references."""
        if self.experiment is not None:
            return self.experiment
        if self.task is not None:
            return self.task
        return {} if self.registration is None else self.registration.model_dump(mode="json")

    @property
    def condition(self) -> Condition | None:
        """`when`, as it was read."""
        return None if self.when is None else parse_condition(self.when)


class Definition(Section):
    """A campaign. `steps` are in the order in which they were written."""

    name: str = Field(min_length=1, max_length=120)
    description: str = Field(default="", max_length=4000)
    workspace: str = Field(default="", max_length=80)
    project: str = Field(default="", max_length=80)
    params: dict[str, str | bool | int | float] = Field(default={}, max_length=MOST_PARAMS)
    schedule: Schedule | None = None
    steps: dict[str, Step]

    @cached_property
    def before(self) -> dict[str, list[str]]:
        """The steps that each step comes after, as written and by its references, in the order of the definition."""
        found: dict[str, list[str]] = {}
        for name, step in self.steps.items():
            wanted = {*step.after, *(ref.step for ref in _references_of(step) if ref.step is not None)}
            found[name] = [each for each in self.steps if each in wanted]
        return found

    @cached_property
    def order(self) -> list[str]:
        """The steps, each behind those that it comes after; otherwise as they were written."""
        return _ordered(self.before)[0]


class DefinitionError(ValueError):
    """A definition that can't be used. Its text has a line for each problem: the field, and the line of the file."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(dict.fromkeys(problems))
        shown = self.problems[:MOST_PROBLEMS]
        more = len(self.problems) - len(shown)
        super().__init__("\n".join(shown) + (f"\nand {more} more" if more else ""))


def parse_definition(text: str, read_file: Callable[[str], str | None]) -> Definition:
    """Read and check a definition.

    Args:
        text: YAML or JSON.
        read_file: The text of a file of the context folder, by its path; None if there is none.

    Raises: DefinitionError.
    """
    if len(text) > LONGEST_TEXT:
        raise DefinitionError([f"campaign: {len(text)} characters, the limit is {LONGEST_TEXT}"])
    document = _read(text, "campaign")
    value = document.value
    if not isinstance(value, dict):
        raise DefinitionError(["campaign: expected a map with name and steps"])
    fields = cast("dict[str, Any]", value)
    _check_shape(fields, document)
    total = len(text)
    for name, step in cast("dict[str, dict[str, Any]]", fields["steps"]).items():
        for kind in ("experiment", "task"):
            file = step.get(kind)
            if isinstance(file, str):
                written = read_file(file)
                place = f"steps.{name}.{kind}"
                if written is None:
                    raise DefinitionError(
                        [_at(document, ("steps", name, kind), f"{file[:100]!r}: no such file in the context folder")]
                    )
                total += len(written)
                if total > LONGEST_TEXT:
                    raise DefinitionError([f"{place}: with {file!r} more than {LONGEST_TEXT} characters altogether"])
                step[kind] = _read(written, f"{place}: {file}").value
    try:
        definition = Definition.model_validate(fields)
    except ValidationError as error:
        raise DefinitionError(_told(document, error)) from None
    problems = list(_problems(definition, document))
    if problems:
        raise DefinitionError(problems)
    return definition


def checked_params(definition: Definition, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a run: the defaults, and what is given in their place. Raises: DefinitionError."""
    problems: list[str] = []
    for name, value in given.items():
        if name not in definition.params:
            known = ", ".join(definition.params) or "none"
            problems.append(f"params.{name[:60]}: the campaign has no such parameter; it has {known}")
            continue
        default = definition.params[name]
        if _is_number(default) and _is_number(value):
            continue
        if type(value) is not type(default):
            problems.append(f"params.{name}: {str(value)[:60]!r}: expected a {_type(default)}, as {default!r} is")
        elif isinstance(value, str) and len(value) > _LONGEST_VALUE:
            problems.append(f"params.{name}: {len(value)} characters, the limit is {_LONGEST_VALUE}")
    if problems:
        raise DefinitionError(problems)
    return definition.params | dict(given)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _type(value: Any) -> str:
    return "boolean" if isinstance(value, bool) else "number" if _is_number(value) else "text"


def _read(text: str, what: str) -> Document:
    try:
        return parse_text(text)
    except ConfigError as error:
        raise DefinitionError([f"{what}: {problem}" for problem in error.problems]) from None


def _at(document: Document, path: Path, message: str) -> str:
    """A line of the error: the field, what is wrong, and where the file has it."""
    place = document.positions.get(path)
    where = ".".join(map(str, path)) or "campaign"
    return f"{where}: {message}" + (f" (line {place[0]})" if place is not None else "")


def _check_shape(fields: dict[str, Any], document: Document) -> None:
    """What has to be right before the rest can be looked at. Raises: DefinitionError."""
    steps: Any = fields.get("steps")
    if not isinstance(steps, dict) or not steps:
        raise DefinitionError([_at(document, ("steps",), "expected a map with a step each, by its name")])
    named = cast("dict[str, Any]", steps)
    if len(named) > MOST_STEPS:
        raise DefinitionError([_at(document, ("steps",), f"{len(named)} steps, the limit is {MOST_STEPS}")])
    problems: list[str] = []
    for name, step in named.items():
        path = ("steps", name)
        if not _NAME.fullmatch(name):
            problems.append(
                _at(document, ("steps", name[:60]), "expected a name of letters, digits, - and _, at most 40")
            )
        elif not isinstance(step, dict):
            problems.append(_at(document, path, "expected a map with one of experiment, task and register"))
        elif len(given := [kind.value for kind in StepKind if cast("dict[str, Any]", step).get(kind) is not None]) != 1:
            found = " and ".join(given) or "none of them"
            problems.append(_at(document, path, f"it has {found}: expected one of experiment, task and register"))
    if problems:
        raise DefinitionError(problems)


def _told(document: Document, error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_url=False):
        path = tuple(part for part in problem["loc"] if part not in ("str", "bool", "int", "float"))
        if problem["type"] == "extra_forbidden":
            known = Step.model_fields if path[:1] == ("steps",) and len(path) == 3 else Definition.model_fields
            close = suggest(str(path[-1]), ("register" if name == "registration" else name for name in known))
            yield _at(document, path, "unknown key" + (f": did you mean {close}?" if close else ""))
        elif problem["type"] == "missing":
            yield _at(document, path, "it is missing")
        else:
            message = problem["msg"].replace("Input should be", "expected")
            yield _at(document, path, f"{str(problem.get('input'))[:60]!r}: {message[:1].lower()}{message[1:]}")


# -- what the parts say of each other ----------------------------------------------------------------------------------


def _references_of(step: Step) -> Iterator[Reference]:
    """Of a step that was checked."""
    for _, reference, _ in references(step.work):
        yield reference
    if step.condition is not None:
        yield from condition_references(step.condition)


def _problems(definition: Definition, document: Document) -> Iterator[str]:
    yield from _of_texts(definition, document)
    if definition.schedule is not None:
        yield from _of_schedule(definition.schedule, document)
    before: dict[str, list[str]] = {}
    count = 0
    for name, step in definition.steps.items():
        wanted: dict[str, None] = {}
        for index, other in enumerate(step.after):
            if other == name or other not in definition.steps:
                what = "a step can't come after itself" if other == name else _no_step(other, definition)
                yield _at(document, ("steps", name, "after", index), f"{other[:60]!r}: {what}")
            else:
                wanted[other] = None
        if step.template and step.kind is StepKind.REGISTER:
            yield _at(document, ("steps", name, "template"), "expected none: a registration has no configuration")
        found = _found(name, step, document)
        for problem in found.problems:
            yield problem
        for path, reference, is_whole in found.references:
            count += 1
            problem = _problem_of(definition, name, step, path, reference, is_whole)
            if problem is not None:
                yield _at(document, ("steps", name, *path), f"{reference}: {problem}")
            elif reference.step is not None:
                wanted[reference.step] = None
        before[name] = list(wanted)
    if count > MOST_REFERENCES:
        yield f"steps: {count} references, the limit is {MOST_REFERENCES}"
    cycle = _ordered(before)[1]
    if cycle:
        yield _at(document, ("steps", cycle[0]), f"its steps wait for each other: {' after '.join([*cycle, cycle[0]])}")


def _of_texts(definition: Definition, document: Document) -> Iterator[str]:
    if not definition.name.strip() or not definition.name.isprintable():
        yield _at(document, ("name",), "expected a text that is not blank, in one line")
    if bool(definition.workspace) != bool(definition.project):
        yield _at(document, ("workspace",), "workspace and project go together: expected both or neither")
    for name, value in definition.params.items():
        if not _NAME.fullmatch(name):
            yield _at(document, ("params", name[:60]), "expected a name of letters, digits, - and _, at most 40")
        elif isinstance(value, str) and len(value) > _LONGEST_VALUE:
            yield _at(document, ("params", name), f"{len(value)} characters, the limit is {_LONGEST_VALUE}")


def _of_schedule(schedule: Schedule, document: Document) -> Iterator[str]:
    try:
        parse_cron(schedule.cron)
    except CronError as error:
        yield _at(document, ("schedule", "cron"), str(error))
    try:
        ZoneInfo(schedule.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        yield _at(document, ("schedule", "time_zone"), f"{schedule.time_zone!r}: expected a name such as Europe/Berlin")
    seconds = seconds_of(schedule.catch_up)
    if seconds is None or not 0 <= seconds <= _MOST_CATCH_UP_S:
        yield _at(
            document, ("schedule", "catch_up"), f"{schedule.catch_up!r}: expected a duration such as 1h, at most 720h"
        )


def _no_step(name: str, definition: Definition) -> str:
    close = suggest(name, definition.steps)
    return "there is no such step" + (f": did you mean {close}?" if close else "")


class _Found:
    def __init__(self) -> None:
        self.references: list[tuple[Path, Reference, bool]] = []
        self.problems: list[str] = []


def _found(name: str, step: Step, document: Document) -> _Found:
    """The references of a step, and what of it can't be read."""
    found = _Found()
    try:
        found.references += [((step.kind.value, *path), ref, whole) for path, ref, whole in references(step.work)]
    except ExpressionError as error:
        found.problems.append(_at(document, ("steps", name, step.kind.value), str(error)))
    try:
        if step.condition is not None:
            found.references += [(("when",), ref, False) for ref in condition_references(step.condition)]
    except ExpressionError as error:
        found.problems.append(_at(document, ("steps", name, "when"), str(error)))
    return found


def _problem_of(
    definition: Definition, name: str, step: Step, path: Path, reference: Reference, is_whole: bool
) -> str | None:
    """What is wrong with a reference; None if it is right as far as can be known."""
    root, *rest = reference.path
    if root == "params":
        if len(rest) != 1 or rest[0] not in definition.params:
            close = suggest(rest[0], definition.params)
            return "there is no such parameter" + (f": did you mean params.{close}?" if close else "")
        return None
    if root == "run":
        return None if len(rest) == 1 and rest[0] in RUN_FIELDS else f"expected one of {_listed('run', RUN_FIELDS)}"
    other, output, *further = rest
    if other == name:
        return "a step can't refer to itself"
    if other not in definition.steps:
        return _no_step(other, definition)
    outputs = OUTPUTS[definition.steps[other].kind]
    kind = outputs.get(output)
    if kind is None:
        close = suggest(output, outputs)
        hint = f": did you mean {close}?" if close else f": it has {', '.join(outputs)}"
        return f"a step of the kind {definition.steps[other].kind} has no output {output!r}{hint}"
    if (kind == "map") != bool(further):
        return f"expected a name behind {output}, as in {output}.loss" if kind == "map" else f"{output} is one value"
    wanted = "checkpoint" if path == ("register", "checkpoint") else _TYPED.get(tuple(map(str, path[1:])))
    if wanted is not None and (kind != wanted or not is_whole):
        return f"it is a {kind}: expected a {wanted}, such as {_listed('steps.' + other, _of_type(wanted))}"
    return None


def _of_type(wanted: str) -> list[str]:
    return [name for name, kind in OUTPUTS[StepKind.EXPERIMENT].items() if kind == wanted]


def _listed(root: str, names: Iterable[str]) -> str:
    return ", ".join(f"${{{root}.{name}}}" for name in names)


def _ordered(before: Mapping[str, list[str]]) -> tuple[list[str], list[str]]:
    """The names, each behind those before it; and a cycle, if there is one."""
    done: dict[str, None] = {}
    while len(done) < len(before):
        ready = next((name for name in before if name not in done and all(b in done for b in before[name])), None)
        if ready is None:
            return list(done), _cycle(before, done)
        done[ready] = None
    return list(done), []


def _cycle(before: Mapping[str, list[str]], done: Mapping[str, None]) -> list[str]:
    name, seen = next(name for name in before if name not in done), list[str]()
    while name not in seen:
        seen.append(name)
        name = next(other for other in before[name] if other not in done)
    return seen[seen.index(name) :]
