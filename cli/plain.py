"""Values of options and arguments that are right at first sight.

Typer converts with pydantic, which takes longer to load than all else that a command needs. What is plain, which is
nearly everything, is converted here; what isn't, or is wrong, typer converts or refuses, in its words.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

_INTEGER = re.compile("-?[0-9]{1,15}")
_DECIMAL = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")


def read_plainly(parameter: Any) -> None:
    """Have a parameter converted here where that can be. What another release of typer has stays as it is."""
    if hasattr(parameter, "get_runtime_param") and "get_runtime_param" not in vars(parameter):
        plain = _Plain(parameter.type_descriptor, parameter.get_runtime_param)
        parameter.get_runtime_param = lambda: plain


class _Plain:
    """Converts values, as typer's `RuntimeParam` does.

    Args:
        descriptor: The type, and what further is asked of a value.
        whole: Makes typer's own, with pydantic.
    """

    def __init__(self, descriptor: Any, whole: Callable[[], Any]) -> None:
        self._descriptor = descriptor
        self._whole = whole

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value of the type that the command takes. Raises: BadParameter."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        found = plain(self._descriptor.annotation, self._descriptor.parameter_info, value)
        return self._whole().coerce(value, param=param, ctx=ctx) if found is None else found


def plain(kind: Any, info: Any, value: Any) -> Any:
    """A value of that type; None where typer has to look at it.

    Args:
        kind: The annotation, without None.
        info: What is asked of the value besides: `min`, `exists` and such.
        value: A word of the command line, or the default; for lists, several.
    """
    if info.parser is not None or info.clamp or not info.case_sensitive:
        return None
    if get_origin(kind) is list:
        if not isinstance(value, (list, tuple)):
            return None
        (of,) = get_args(kind)
        found = [plain(of, info, each) for each in value]  # pyright: ignore[reportUnknownVariableType]
        return None if None in found else found
    if get_origin(kind) is Literal:
        return value if isinstance(value, str) and value in get_args(kind) else None
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(value) if value in tuple(kind) else None
    if kind is str:
        return value if isinstance(value, str) else None
    if kind is Path:
        return _path(info, value)
    if kind in (int, float):
        return _number(kind, info, value)
    return None


def _number(kind: type[int | float], info: Any, value: Any) -> int | float | None:
    if isinstance(value, str):
        if not (_INTEGER if kind is int else _DECIMAL).fullmatch(value):
            return None
        value = kind(value)
    if type(value) is not kind:
        return None
    is_low, is_high = info.min is not None and value < info.min, info.max is not None and value > info.max
    return None if is_low or is_high else value


def _path(info: Any, value: Any) -> Path | None:
    """A path of which nothing is asked but that it can be read where it is."""
    asked = info.exists or info.writable or info.resolve_path or info.allow_dash or info.path_type
    if asked or not (info.file_okay and info.dir_okay and isinstance(value, (str, Path))):
        return None
    return Path(value) if not info.readable or os.access(value, os.R_OK) or not os.path.lexists(value) else None
