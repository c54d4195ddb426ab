"""Commands of Determined's that we lack: each says so, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from cli.group import command_of, new_app

NAMES = {"oauth": "a provider of accounts is no OAuth client here: it shows the secret in UNDETERRED_SCIM_TOKEN"}


def command() -> Any:
    """All of them that are groups of their own, as a command."""
    return command_of(app)


def not_there(app: typer.Typer, reason: str, *names: str, is_shown: bool = False) -> None:
    """Add commands to a group that say of themselves that they are not there yet, and `reason`."""
    for name in names:
        context = {"allow_extra_args": True, "ignore_unknown_options": True}
        app.command(name, hidden=not is_shown, context_settings=context)(_refusal(reason))


def _refusal(reason: str) -> Callable[[typer.Context], None]:
    def refuse(context: typer.Context) -> None:
        raise ValueError(f"`{context.command_path}` is not there yet: {reason}.")

    refuse.__doc__ = f"Not there yet: {reason}."
    return refuse


app = new_app("Not there yet.")
for _name, _reason in NAMES.items():
    not_there(app, _reason, _name, is_shown=True)
