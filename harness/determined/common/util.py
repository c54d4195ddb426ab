"""Small functions that scripts take from here. Source: the published package, run as a black box."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime
    import pathlib
    from collections.abc import Callable, Iterator, Sequence
    from typing import IO, Any, TypeVar

    T = TypeVar("T")
    F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "chunks",
    "debug_mode",
    "deprecated",
    "get_config_path",
    "is_protobuf_timestamp",
    "parse_protobuf_timestamp",
    "preserve_random_state",
    "safe_load_yaml_with_exceptions",
    "sizeof_fmt",
    "strtobool",
    "wait_for",
    "yaml_safe_dump",
    "yaml_safe_load",
]


def chunks(lst: Sequence[Any], chunk_size: int) -> Iterator[Sequence[Any]]:
    """Parts of a sequence of `chunk_size` items each; the last one may be shorter."""
    for start in range(0, len(lst), chunk_size):
        yield lst[start : start + chunk_size]


def sizeof_fmt(val: float) -> str:
    """Bytes for people, such as `1.2MB`, by powers of 1024."""
    size = float(val)
    for unit in ("", "K", "M", "G", "T", "P", "E", "Z"):
        if abs(size) < 1024:
            return f"{size:.1f}{unit}B"
        size /= 1024
    return f"{size:.1f}YB"


def debug_mode() -> bool:
    """Whether DET_DEBUG is set to something true."""
    return strtobool(os.environ.get("DET_DEBUG", ""))


def strtobool(val: str) -> bool:
    """False for an empty text, `0`, `f`, `false`, `n`, `no` and `off`, in any case; else True."""
    return val.strip().lower() not in ("", "0", "f", "false", "n", "no", "off")


def get_config_path() -> pathlib.Path:
    """The folder of the client's settings."""
    import pathlib

    if given := os.environ.get("DET_DEBUG_CONFIG_PATH"):
        return pathlib.Path(given)
    return pathlib.Path(os.environ.get("XDG_CONFIG_HOME") or pathlib.Path.home() / ".config") / "determined"


def parse_protobuf_timestamp(ts: str) -> datetime.datetime:
    """A time of the REST API, without its fraction of a second.

    Raises:
        ValueError: It is none.
    """
    import datetime

    whole = ts.rstrip("Zz").partition(".")[0]
    return datetime.datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=datetime.timezone.utc)


def is_protobuf_timestamp(ts: str) -> bool:
    """Whether it is a time of the REST API."""
    try:
        parse_protobuf_timestamp(ts)
    except ValueError:
        return False
    return True


def wait_for(predicate: Callable[[], tuple[bool, T]], timeout: float = 60, interval: float = 0.1) -> T:
    """The second part of what `predicate` answers, as soon as the first is true; seconds.

    Raises:
        TimeoutError: It never was.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        is_done, value = predicate()
        if is_done:
            return value
        time.sleep(interval)
    raise TimeoutError("timed out waiting for predicate")


def deprecated(message: str | None = None) -> Callable[[F], F]:
    """A decorator: calls of the function warn that it will be removed."""
    import functools
    import warnings

    def decorate(function: F) -> F:
        said = f"{function.__name__} is deprecated and will be removed in a future version."

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            warnings.warn(f"{said} {message}." if message else said, DeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        return call  # pyright: ignore[reportReturnType]

    return decorate


def preserve_random_state(fn: F) -> F:
    """A decorator: the function leaves the state of `random` as it found it."""
    import functools
    import random

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        state = random.getstate()
        try:
            return fn(*args, **kwargs)
        finally:
            random.setstate(state)

    return call  # pyright: ignore[reportReturnType]


def yaml_safe_load(f: IO[Any] | str) -> Any:
    """The first document of a YAML text or file."""
    import yaml

    return yaml.safe_load(f)


def yaml_safe_dump(data: Any, stream: IO[Any] | None = None, default_flow_style: bool | None = None) -> Any:
    """YAML text, or None if it went into `stream`."""
    import yaml

    return yaml.safe_dump(data, stream, default_flow_style=default_flow_style)


def safe_load_yaml_with_exceptions(yaml_file: IO[Any] | str) -> Any:
    """`yaml_safe_load`; what is no YAML ends the program with a sentence.

    Raises:
        SystemExit: With status 1.
    """
    import sys

    import yaml

    try:
        return yaml.safe_load(yaml_file)
    except yaml.YAMLError as e:
        print(f"Error: invalid experiment config file.\n{type(e).__name__}: {e}", file=sys.stderr)  # noqa: T201
        raise SystemExit(1) from None
