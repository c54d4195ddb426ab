"""Options that several commands share as a whole, such as those that choose lines of a log."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields
from typing import Any, get_type_hints


class Bundle:
    """The base of a dataclass whose fields are options: each annotated as a parameter of a command is."""


def bundled(command: Callable[..., None]) -> Callable[..., None]:
    """A command with parameters that are bundles: in the place of each come the options of its fields."""

    def called(**given: Any) -> None:
        signature = inspect.signature(command, eval_str=True)
        bundles = {p.name: p.annotation for p in signature.parameters.values() if _is_bundle(p.annotation)}
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in bundles.items()
        }
        command(**given, **made)

    def parameters() -> Iterator[inspect.Parameter]:
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            yield from _expanded(parameter)

    return Taking(command, called, parameters)


class Taking:
    """A wrapper of a command, with other options than its own. They are worked out when typer asks for them.

    Args:
        command: What is wrapped: its name and its help.
        called: Called in its place.
        parameters: The options.
    """

    def __init__(
        self,
        command: Callable[..., None],
        called: Callable[..., None],
        parameters: Callable[[], Iterable[inspect.Parameter]],
    ) -> None:
        functools.update_wrapper(self, command, ("__module__", "__name__", "__qualname__", "__doc__"), ())
        self._called = called
        self._parameters = parameters

    def __call__(self, **given: Any) -> None:
        self._called(**given)

    # typer reads the options from these two

    @functools.cached_property
    def __signature__(self) -> inspect.Signature:
        return inspect.Signature(list(self._parameters()))

    @property
    def __annotations__(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return {parameter.name: parameter.annotation for parameter in self.__signature__.parameters.values()}


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
