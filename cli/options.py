"""Arguments and options that several commands have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from cli.bundles import Bundle, Taking
from cli.render import Form

Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print as CSV.")]
Yaml = Annotated[bool, typer.Option("--yaml", help="Print as YAML.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Show at most this many.")]
OrderBy = Annotated[Literal["asc", "desc"], typer.Option("--order-by", help="Upwards or downwards.")]
SortByName = Annotated[Literal["id", "name"], typer.Option("--sort-by", help="In which order.")]
OfAllocation = Annotated[list[str] | None, typer.Option("--allocation-id", help="Only of this allocation.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the path only.")]
WorkspaceName = Annotated[str, typer.Argument(metavar="WORKSPACE_NAME", help="The workspace.", show_default=False)]
ProjectName = Annotated[str, typer.Argument(metavar="PROJECT_NAME", help="The project.", show_default=False)]
InWorkspace = Annotated[
    str | None, typer.Option("--workspace-name", "-w", help="In this workspace.", show_default=False)
]
Days = Annotated[
    int | None, typer.Option("--days", min=-1, max=32767, help="The days after the end; -1: never remove them.")
]
Forever = Annotated[bool, typer.Option("--forever", help="Keep them indefinitely.")]
ExperimentId = Annotated[
    int, typer.Argument(metavar="EXPERIMENT_ID", help="The experiment's number.", show_default=False)
]
TrialId = Annotated[int, typer.Argument(metavar="TRIAL_ID", help="The trial's number.", show_default=False)]


@dataclass(frozen=True)
class TaskUser(Bundle):
    """The user and group that tasks run as on the agents."""

    agent_uid: Annotated[
        int | None, typer.Option("--agent-uid", min=0, help="Number of the user that tasks run as.")
    ] = None
    agent_user: Annotated[str | None, typer.Option("--agent-user", help="Name of the user that tasks run as.")] = None
    agent_gid: Annotated[
        int | None, typer.Option("--agent-gid", min=0, help="Number of the group that tasks run as.")
    ] = None
    agent_group: Annotated[str | None, typer.Option("--agent-group", help="Name of the group that tasks run as.")] = (
        None
    )

    def agent_user_group(self) -> dict[str, Any] | None:
        """As the API has it; None if nothing of it was given."""
        given = {
            "agentUid": self.agent_uid,
            "agentUser": self.agent_user,
            "agentGid": self.agent_gid,
            "agentGroup": self.agent_group,
        }
        return {name: value for name, value in given.items() if value is not None} or None


@dataclass(frozen=True)
class LogLines(Bundle):
    """Which lines of a log are wanted, and in which form."""

    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more lines until it ends.")] = False
    head: Annotated[int | None, typer.Option("--head", min=1, help="Print only this many lines from the start.")] = None
    tail: Annotated[int | None, typer.Option("--tail", min=1, help="Print only this many lines from the end.")] = None
    as_json: Json = False
    level: Annotated[str | None, typer.Option("--level", help="This level and above: TRACE … CRITICAL.")] = None
    agent_id: Annotated[list[str] | None, typer.Option("--agent-id", help="Only of this agent.")] = None
    container_id: Annotated[list[str] | None, typer.Option("--container-id", help="Only of this container.")] = None
    rank_id: Annotated[list[int] | None, typer.Option("--rank-id", help="Only of this rank.")] = None
    stdtype: Annotated[list[str] | None, typer.Option("--stdtype", help="stdout or stderr.")] = None
    source: Annotated[list[str] | None, typer.Option("--source", help="Only from this source.")] = None
    timestamp_before: Annotated[
        str | None, typer.Option("--timestamp-before", help="Only before this time (RFC 3339).")
    ] = None
    timestamp_after: Annotated[
        str | None, typer.Option("--timestamp-after", help="Only after this time (RFC 3339).")
    ] = None

    def filters(self) -> dict[str, Any]:
        """The parameters of a request that keep other lines away."""
        named = {
            "agentIds": self.agent_id,
            "containerIds": self.container_id,
            "rankIds": self.rank_id,
            "stdtypes": self.stdtype,
            "sources": self.source,
            "timestampBefore": self.timestamp_before,
            "timestampAfter": self.timestamp_after,
        }
        return {name: value for name, value in named.items() if value}


def lists(command: Callable[..., None]) -> Callable[..., None]:
    """A command that lists: its parameter `form` becomes `--json`, `--yaml`, `--csv`, `--columns` and `--limit`."""
    return _with_form(command, {**_FORM, **_LIMIT})


def paged(command: Callable[..., None]) -> Callable[..., None]:
    """A command that lists what comes in pages: as `lists`, with `--offset` and `--pages`."""
    return _with_form(command, {**_FORM, **_LIMIT, **_PAGES})


def shows(command: Callable[..., None]) -> Callable[..., None]:
    """A command that shows one thing: as `lists`, without `--limit`."""
    return _with_form(command, _FORM)


def at_most_one(**given: object) -> None:
    """Check that no more than one of these options was given. Raises: BadParameter."""
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value not in (None, False)]
    if len(names) > 1:
        raise typer.BadParameter(f"only one of {', '.join(names)} can be given.")


def retention(days: int | None, forever: bool) -> int:
    """The retention of logs in days, -1 without a limit. Raises: BadParameter."""
    if (days is not None) == forever:
        raise typer.BadParameter("expected either --days or --forever.")
    return -1 if days is None else days


def _option(type_: Any, default: Any, name: str, help: str, **more: Any) -> inspect.Parameter:
    annotation: Any = Annotated[type_, typer.Option(f"--{name}", help=help, **more)]
    key = f"as_{name}" if type_ is bool else name
    return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_FORM: Mapping[str, inspect.Parameter] = {
    option.name: option
    for option in (
        _option(bool, False, "json", "Print as JSON."),
        _option(bool, False, "yaml", "Print as YAML."),
        _option(bool, False, "csv", "Print as CSV."),
        _option(
            str, "", "columns", "Only these columns, in this order: names with commas between.", show_default=False
        ),
    )
}
_LIMIT: Mapping[str, inspect.Parameter] = {
    "limit": _option(int | None, None, "limit", "Show at most this many.", min=1),
}
_PAGES: Mapping[str, inspect.Parameter] = {
    "offset": _option(int, 0, "offset", "Skip this many from the start.", min=0),
    "pages": _option(
        Literal["1", "all"] | None, None, "pages", "1: one page of --limit, or of 200; all: everything, page by page."
    ),
}


def _with_form(command: Callable[..., None], options: Mapping[str, inspect.Parameter]) -> Callable[..., None]:
    def called(**given: Any) -> None:
        wanted = {name: given.pop(name) for name in options}
        at_most_one(json=wanted["as_json"], yaml=wanted["as_yaml"], csv=wanted["as_csv"])
        if wanted["columns"] and (wanted["as_json"] or wanted["as_yaml"]):
            raise typer.BadParameter("--columns goes with tables and --csv: JSON and YAML have everything.")
        command(**given, form=Form(**wanted))

    def parameters() -> Iterator[inspect.Parameter]:
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name != "form":
                yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        yield from options.values()

    return Taking(command, called, parameters)
