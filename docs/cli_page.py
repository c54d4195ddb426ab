"""The reference of `det`: every command with its arguments and options, from the commands themselves."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from typer.core import TyperArgument, TyperGroup

from cli import commands
from docs.tables import cell


def page() -> str:
    """The page as Markdown."""
    lines = [
        "# det, by command",
        "",
        "Generated from the commands. Conventions, forms of output and exit codes: [The command line](../cli.md).",
        "",
    ]
    for entry in commands.ENTRIES:
        if entry.module == "later":
            continue
        group: Any = importlib.import_module(f"cli.{entry.module}").command()
        lines += [f"## {entry.name}", ""]
        if entry.shown != entry.name:
            lines += [f"Short: `{entry.shown}`.", ""]
        if entry.word:
            lines += _command(f"det {entry.name}", group.commands[entry.word])
        else:
            for name, command in _walk(f"det {entry.name}", group):
                lines += [f"### {name.removeprefix('det ')}", "", *_command(name, command)]
    return "\n".join(lines)


def _walk(name: str, group: TyperGroup) -> Iterator[tuple[str, Any]]:
    for word, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        if isinstance(command, TyperGroup):
            yield from _walk(f"{name} {word}", command)
        else:
            yield f"{name} {word}", command


def _command(name: str, command: Any) -> list[str]:
    arguments = [parameter for parameter in command.params if isinstance(parameter, TyperArgument)]
    options = [p for p in command.params if p not in arguments and not p.hidden and p.name != "help"]
    usage = " ".join([name, *(_argument(argument) for argument in arguments), *(["[OPTIONS]"] if options else [])])
    lines = [_sentence(command.help or ""), "", f"`{usage}`", ""]
    if options:
        lines += ["| option | |", "| --- | --- |"]
        for option in options:
            names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
            lines.append(f"| {names} | {cell(option.help or '')}{_default(option)} |")
        lines.append("")
    return lines


def _argument(argument: Any) -> str:
    name = str(argument.metavar or argument.name).upper() + ("…" if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _default(option: Any) -> str:
    if option.is_flag or option.default in (None, "", (), []) or callable(option.default):
        return ""
    return f" Default: {option.default}."


def _sentence(text: str) -> str:
    text = " ".join(text.partition("\f")[0].split())
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?", ":")) or not text else f"{text}."
