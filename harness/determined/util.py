"""Small functions that scripts take from here. Source: spec python-api.md, the published package run as a black box."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import cast

from determined import errors
from determined.common.util import sizeof_fmt

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Generator, Iterable
    from typing import Any

__all__ = [
    "calculate_batch_sizes",
    "filter_duplicates",
    "force_create_symlink",
    "forward_signals",
    "humanize_float",
    "is_numerical_scalar",
    "is_overridden",
    "json_encode",
    "mask_config_dict",
    "merge_dicts",
    "sizeof_fmt",
]

_MASK = "*" * 8
_SECRETS_OF_STORAGE = ("access_key", "secret_key", "connection_string", "credential")
_SECRETS_OF_LOGIN = ("username", "password", "auth", "identitytoken", "registrytoken")


def json_encode(obj: Any, indent: str | None = None, sort_keys: bool = False) -> str:
    """JSON also of numpy's numbers and arrays, UUIDs, times and bytes; NaN and infinities become strings.

    Raises:
        TypeError: There is something else in it.
    """
    return json.dumps(_plain(obj), indent=indent, sort_keys=sort_keys)


def _plain(value: Any) -> Any:
    import datetime
    import math
    import uuid

    if isinstance(value, dict):
        return {name: _plain(each) for name, each in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in cast("Iterable[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "tolist"):  # numpy
        return _plain(value.tolist())
    raise TypeError(f"Unserializable object {value} of type {type(value)}")


def filter_duplicates(in_list: list[Any], sorter: Callable[[list[Any]], list[Any]] = sorted) -> set[Any]:
    """The values that come more than once."""
    ordered = sorter(in_list)
    return {value for value, following in zip(ordered, ordered[1:]) if value == following}


def humanize_float(n: float) -> float:
    """A number rounded to four significant digits."""
    return float(f"{n:.4g}")


def is_numerical_scalar(n: Any) -> bool:
    """Whether it is a number, also of numpy."""
    import numbers

    return isinstance(n, numbers.Number) or (type(n).__module__ == "numpy" and getattr(n, "shape", None) == ())


def is_overridden(full_method: Any, parent_class: Any) -> bool:
    """Whether a method is another than that of the same name of a class."""
    function = getattr(full_method, "__func__", full_method)
    return function is not getattr(parent_class, full_method.__name__)


def merge_dicts(base_dict: dict[Any, Any], source_dict: dict[Any, Any]) -> dict[Any, Any]:
    """`base_dict`, changed: with what `source_dict` has, which wins; dictionaries in both are merged."""
    for name, value in source_dict.items():
        known = base_dict.get(name)
        if isinstance(value, dict) and isinstance(known, dict):
            merge_dicts(cast("dict[Any, Any]", known), cast("dict[Any, Any]", value))
        else:
            base_dict[name] = value
    return base_dict


def mask_config_dict(d: dict[str, Any]) -> dict[str, Any]:
    """A copy of an experiment's configuration with stars for its secrets."""
    import copy

    masked = copy.deepcopy(d)
    environment: dict[str, Any] = masked.get("environment") or {}
    storage: dict[str, Any] = masked.get("checkpoint_storage") or {}
    login: dict[str, Any] = environment.get("registry_auth") or {}
    for section, names in ((storage, _SECRETS_OF_STORAGE), (login, _SECRETS_OF_LOGIN)):
        section.update({name: _MASK for name in names if section.get(name)})
    return masked


def calculate_batch_sizes(hparams: dict[str, Any], slots_per_trial: int, trialname: str) -> tuple[int, int]:
    """The batch size of one slot and that of all of them, from `hparams["global_batch_size"]`.

    Raises:
        InvalidExperimentException: It is not given, or less than there are slots.
    """
    size = hparams.get("global_batch_size")
    if not isinstance(size, int):
        raise errors.InvalidExperimentException(
            f"hyperparameters.global_batch_size: {size!r}: expected a whole number, which training by {trialname} needs"
        )
    if size < slots_per_trial:
        raise errors.InvalidExperimentException(
            f"hyperparameters.global_batch_size: {size}: expected at least one for each of the {slots_per_trial} slots"
        )
    each = size // slots_per_trial
    if each * slots_per_trial != size:
        print(  # noqa: T201
            f"`global_batch_size` changed from {size} to {each * slots_per_trial} to divide equally across "
            f"{slots_per_trial} slots.",
            file=sys.stderr,
        )
    return each, each * slots_per_trial


def force_create_symlink(src: str, dst: str) -> None:
    """A link at `dst` to `src`, in place of what is there, unless that is a folder."""
    temporary = f"{dst}.{os.getpid()}"
    os.symlink(src, temporary)
    try:
        os.replace(temporary, dst)
    except OSError:
        os.unlink(temporary)
        raise


@contextlib.contextmanager
def forward_signals(p: subprocess.Popen[Any], *signums: signal.Signals) -> Generator[None, None, None]:
    """Within the block, hand signals on to a process: those named, else those that ask to end and the user's."""
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH")
    wanted: Iterable[signal.Signals] = signums or [signal.Signals[name] for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, lambda received, _: p.send_signal(received)) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
