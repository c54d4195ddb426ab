"""Options that several commands share as a whole, such as those that choose lines of a log."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields
from typing import Any, get_type_hints


class Bundle:
    """The base of a dataclass whose fields are options: each annotated as a parameter of a command is."""


def bundled(command: Callable[..., None]) -> Callable[..., None]:
    """A command with parameters that are bundles: in the place of each come the options of its fields."""
    signature = inspect.signature(command, eval_str=True)
    bundles = {p.name: p.annotation for p in signature.parameters.values() if _is_bundle(p.annotation)}

    @functools.wraps(command)
    def called(**given: Any) -> None:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in bundles.items()
        }
        command(**given, **made)

    return taking(called, [each for p in signature.parameters.values() for each in _expanded(p)])


def taking(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """A wrapper of a command, whose options are these instead of its own."""
    whole: Any = command  # typer reads the options from these two
    whole.__signature__ = inspect.Signature(parameters)
    whole.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _is_bundle(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Bundle)


def _expanded(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    if not _is_bundle(parameter.annotation):
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        return
    types = get_type_hints(parameter.annotation, include_extras=True)
    for field in fields(parameter.annotation):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[field.name]
        )
