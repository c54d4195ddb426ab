"""Command groups with short names for their commands, and a command for the bare group."""

from __future__ import annotations

import copy
import difflib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info, get_command_name, get_group_from_info
from typer.models import CommandInfo, TyperInfo

from cli.plain import read_plainly


class _ReadsPlainly:
    """Of a command: its parameters, the option for help too, are converted without pydantic."""

    def get_params(self, ctx: Any) -> list[Any]:
        command: Any = super()
        found: list[Any] = command.get_params(ctx)
        for parameter in found:
            read_plainly(parameter)
        return found


class _Command(_ReadsPlainly, TyperCommand):
    pass


def new_app(
    help: str, *, aliases: Mapping[str, str] | None = None, shortest: Mapping[str, str] | None = None, default: str = ""
) -> typer.Typer:
    """A typer app whose commands have aliases.

    Args:
        help: One line on the group.
        aliases: Short name -> name of the command.
        shortest: Name of a command -> its shortest prefix that also means it.
        default: The command that runs when the group is called without a word.
    """
    short_names = dict(aliases or {})
    prefixes = {
        name[:length]: name for name, prefix in (shortest or {}).items() for length in range(len(prefix), len(name))
    }

    class Group(_ReadsPlainly, TyperGroup):
        default_word = default

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            return super().get_command(ctx, short_names.get(cmd_name) or prefixes.get(cmd_name, cmd_name))

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if default and (not args or (args[0].startswith("-") and args[0] not in ("-h", "--help"))):
                args = [default, *args]
            return super().parse_args(ctx, args or ["--help"])

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            try:
                return super().resolve_command(ctx, args)
            except typer.TyperException as error:
                if "Did you mean" not in error.message:
                    close = difflib.get_close_matches(args[0], [*self.commands, *short_names], 1, 0.5)
                    error.message += f" Did you mean '{close[0]}'?" if close else ""
                raise

    app = typer.Typer(
        cls=Group,
        help=_with_short_names(help, {**short_names, **(_by_prefix(shortest or {}))}, default),
        add_completion=False,
        rich_markup_mode=None,  # plain help pages: loading rich costs more than the rest of the command
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback()(_nothing)  # a group also if it has one command only
    return app


def command_of(app: typer.Typer) -> Any:
    """A group as a command. What it has is made when it is called for: of sixty commands a call of `det` needs one."""
    return _group(TyperInfo(app))


class _Commands(Mapping[str, Any]):
    """Commands by their names, each made when it is looked at."""

    def __init__(self, makers: Mapping[str, Callable[[], Any]]) -> None:
        self._makers = makers
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def _group(info: TyperInfo) -> Any:
    whole = info.typer_instance
    assert whole is not None
    bare, bare_info = copy.copy(whole), copy.copy(info)
    bare.registered_commands, bare.registered_groups, bare_info.typer_instance = [], [], bare
    group: Any = get_group_from_info(bare_info, suggest_commands=whole.suggest_commands, **_settings(whole))
    makers: dict[str, Callable[[], Any]] = {
        _name(each): functools.partial(_command, each, whole) for each in whole.registered_commands
    }
    makers |= {str(each.name): functools.partial(_group, each) for each in whole.registered_groups}
    group.commands = _Commands(makers)
    return group


def _command(info: CommandInfo, app: typer.Typer) -> Any:
    mine = copy.copy(info)
    mine.cls = _Command
    return get_command_from_info(mine, **_settings(app))


def _name(info: CommandInfo) -> str:
    callback: Any = info.callback
    return info.name or get_command_name(callback.__name__)


def _settings(app: typer.Typer) -> dict[str, Any]:
    return {"pretty_exceptions_short": app.pretty_exceptions_short, "rich_markup_mode": app.rich_markup_mode}


def _with_short_names(help: str, short_names: Mapping[str, str], default: str) -> str:
    texts = [f"{short} = {name}" for short, name in short_names.items()]
    if default:
        texts.append(f"without a command: {default}")
    return f"{help}\n\nShort names: {', '.join(texts)}." if texts else help


def _by_prefix(shortest: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix} …": name for name, prefix in shortest.items()}


def _nothing() -> None:
    """The group itself does nothing."""
