"""Command groups with short names for their commands, and a command for the bare group."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperGroup


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

    class Group(TyperGroup):
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


def _with_short_names(help: str, short_names: Mapping[str, str], default: str) -> str:
    texts = [f"{short} = {name}" for short, name in short_names.items()]
    if default:
        texts.append(f"without a command: {default}")
    return f"{help}\n\nShort names: {', '.join(texts)}." if texts else help


def _by_prefix(shortest: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix} …": name for name, prefix in shortest.items()}


def _nothing() -> None:
    """The group itself does nothing."""
