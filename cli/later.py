"""Commands of Determined's that come with a later release: they say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from cli.group import new_app

NAMES = ("notebook", "shell", "command", "tensorboard")

app = new_app("Not there yet.")


def command() -> Any:
    """All of them as a command."""
    return typer.main.get_command(app)


def _refusal(name: str) -> Callable[[typer.Context], None]:
    def refuse(context: typer.Context) -> None:
        raise ValueError(f"`det {name}` is not there yet: this release runs experiments.")

    refuse.__doc__ = f"Not there yet: {name}s come with a later release."
    return refuse


for _name in NAMES:
    app.command(_name, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(_refusal(_name))
