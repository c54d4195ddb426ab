"""Replays a search from its recorded events, to see that they still lead to the recorded decisions.

Also the file format of an exported search: JSON lines, the first one a header with all that the search started from,
then one decision a line. Pure: lines in, lines out; the caller reads and writes files.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from workflows.config import ExperimentConfig
from workflows.searchers.base import Inherited, State
from workflows.searchers.decisions import Decision
from workflows.searchers.search import Search
from workflows.searchers.values import SearchError

FORMAT = "undeterred-search"
VERSION = 1

_Line = TypeVar("_Line", bound=BaseModel)


@dataclass(frozen=True)
class Difference:
    """The first decision that is not what the search makes of the same event today.

    Attributes:
        recorded: As it was written down then.
        derived: What its event leads to now.
    """

    recorded: Decision
    derived: Decision

    @property
    def number(self) -> int:
        """Number of the decision, from 1."""
        return self.recorded.number

    def __str__(self) -> str:
        """Both, one a line, as they are written down."""
        return (
            f"decision {self.number} differs:\n"
            f"recorded: {self.recorded.canonical().decode()}\n"
            f"derived:  {self.derived.canonical().decode()}"
        )


def replay(search: Search, decisions: Iterable[Decision]) -> Difference | None:
    """Decide everything again and compare it byte for byte; returns the first difference, None if there is none.

    Args:
        search: The search as it was before the first of the events; in the end it is as after the last one compared.
        decisions: Its record, in order.
    """
    for recorded in decisions:
        derived = derive(search, recorded)
        if derived.canonical() != recorded.canonical():
            return Difference(recorded, derived)
    return None


def derive(search: Search, recorded: Decision) -> Decision:
    """What a search makes of the event of a recorded decision; an error is part of what it makes of it."""
    try:
        return search.decide(recorded.event)
    except SearchError as error:
        return search.fail(recorded.event, str(error))


def carried_on(search: Search, decisions: Iterable[Decision]) -> Search:
    """The same search, after the events of these decisions."""
    for recorded in decisions:
        derive(search, recorded)
    return search


class ExportError(Exception):
    """The text is no exported search; it says which line is wrong and what was expected there."""

    def __init__(self, line: int, message: str) -> None:
        """Keep the number of the line, from 1."""
        self.line = line
        super().__init__(f"line {line}: {message}")


class Header(State):
    """All that a search started from.

    Attributes:
        format, version: What the lines after it are.
        experiment_id: Number of the experiment.
        name: Its name.
        config: Its config with every default.
        lends: As given to :meth:`Search.new`.
        inherited: As given to :meth:`Search.new`.
        state: Of the experiment.
        parent_id, forked_at: The experiment that it was forked from, and the last decision that both share.
        trials: Numbers of the trials by request id.
    """

    format: Literal["undeterred-search"] = FORMAT
    version: Literal[1] = VERSION
    experiment_id: int
    name: str
    config: dict[str, Any]
    lends: bool | None = None
    inherited: list[Inherited] = []
    state: str = ""
    parent_id: int | None = None
    forked_at: int | None = None
    trials: dict[str, int] = {}

    def new_search(self) -> Search:
        """The search before its first event.

        Raises:
            ExportError: The config is none.
            SearchError: As :meth:`Search.new`.
        """
        try:
            config = ExperimentConfig.model_validate(self.config)
        except ValidationError as error:
            raise ExportError(1, f"expected the config of an experiment, but {_first(error)}") from None
        return Search.new(config, lends=self.lends, inherited=self.inherited)


class Export(NamedTuple):
    """An exported search."""

    header: Header
    decisions: list[Decision]


def dump_lines(header: Header, decisions: Iterable[Decision]) -> Iterator[str]:
    """The lines of an export, without line ends."""
    yield header.model_dump_json()
    for decision in decisions:
        yield decision.canonical().decode()


def parse_lines(lines: Iterable[str]) -> Export:
    """Read an export; line ends and empty lines do not matter.

    Raises:
        ExportError: A line is not what it should be.
    """
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    number, line = next(numbered, (1, ""))
    return Export(_header(line, number), list(_decisions(numbered)))


def _decisions(numbered: Iterable[tuple[int, str]]) -> Iterator[Decision]:
    for expected, (number, line) in enumerate(numbered, 1):
        decision = _parsed(Decision, line, number, "a decision")
        if decision.number != expected:
            raise ExportError(number, f"expected decision {expected}, but it is decision {decision.number}")
        yield decision


def _header(line: str, number: int) -> Header:
    try:
        fields: Any = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
        raise ExportError(number, f'expected the header of an exported search, a JSON object with "format": "{FORMAT}"')
    version: Any = fields.get("version")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if version != VERSION:
        raise ExportError(number, f"expected version {VERSION} of the format, but it is version {version!r}")
    return _parsed(Header, line, number, "the header of an exported search")


def _parsed(model: type[_Line], line: str, number: int, expected: str) -> _Line:
    try:
        return model.model_validate_json(line)
    except ValidationError as error:
        raise ExportError(number, f"expected {expected}, but {_first(error)}") from None


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, in a few words."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]
