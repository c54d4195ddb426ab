"""Printing a log: of a trial or of another task, as it is or as it grows."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

from cli import render, session
from cli.options import LogLines, at_most_one
from determined.common.api._url import api_path

#: A follower hears nothing while the task is quiet. After so long it asks anew, so that a connection that died without
#: a word (a laptop that slept) is noticed.
_SILENCE_S = 60.0
_PAUSE_S = 0.5


def print_logs(
    number: int | str,
    lines: LogLines,
    *,
    kind: Literal["trial", "task"] = "trial",
    allocations: Sequence[str] | None = None,
) -> None:
    """Print the lines of a trial, or of a task. Where it follows, Ctrl-C ends the watching and nothing else.

    Raises: BadParameter if both `head` and `tail` are given; ValueError if there is no such level.
    """
    at_most_one(head=lines.head, tail=lines.tail)
    params = lines.filters() | ({"allocationIds": allocations} if allocations else {})
    if lines.level is not None:
        params["levels"] = _levels(lines.level)
    path = api_path(f"{kind}s", number, "logs")
    if not lines.follow:
        for line in read(path, params, head=lines.head, tail=lines.tail):
            _write(line, lines.as_json)
        return
    try:
        for line in islice(_growing(path, params, lines.tail), lines.head):
            _write(line, lines.as_json)
            sys.stdout.flush()
    except KeyboardInterrupt:
        again = f"det {kind} logs -f {number}"
        render.note(f"\nstopped watching, {kind} {number} goes on; read it again with `{again}`")
        raise


def read(
    path: str, params: Mapping[str, Any], *, head: int | None = None, tail: int | None = None
) -> Iterator[dict[str, Any]]:
    """The lines that there are: all, the first `head` or the last `tail`, the oldest first."""
    wanted = {**params, "limit": head or tail, "orderBy": "ORDER_BY_DESC" if tail else None}
    lines = session.get().stream(path, wanted)
    return iter(list(lines)[::-1]) if tail else lines


def follow_lines(path: str, params: Mapping[str, Any], last: int = -1) -> Iterator[dict[str, Any]]:
    """The lines behind the one with the id `last`, as they arrive, until the task has ended.

    Each comes once, and none is left out, whatever breaks in between: they come in the order of their ids, and after a
    disconnect it goes on behind the last one.
    """
    from determined import errors
    from determined.common.api._retry import is_transient

    is_away = False
    while True:
        wanted = {**params, "follow": True} | ({"afterId": last} if last >= 0 else {})
        try:
            for line in session.get().stream(path, wanted, timeout_s=_SILENCE_S):
                is_away = _back(is_away)
                last = int(line["id"])
                yield line
            return
        except errors.APIException as error:
            if not is_transient(error):
                raise
        if _answers():
            is_away = _back(is_away)
        elif not is_away:
            is_away = True
            render.note("the cluster does not answer; trying again, nothing will be missing (Ctrl-C stops watching)")
        time.sleep(_PAUSE_S)


def _growing(path: str, params: Mapping[str, Any], tail: int | None) -> Iterator[dict[str, Any]]:
    last = -1
    for line in read(path, params, tail=tail) if tail else ():
        last = int(line["id"])
        yield line
    yield from follow_lines(path, params, last)


def _back(was_away: bool) -> bool:
    """Say that the cluster is there again, if it was away. Returns whether it is away now: it is not."""
    if was_away:
        render.note("the cluster answers again")
    return False


def _answers() -> bool:
    from determined import errors

    try:
        session.get().get("/info", timeout_s=5.0, max_tries=1)
    except errors.APIException:
        return False
    return True


def _levels(least: str) -> list[str]:
    """This level and all above, as the API names them."""
    from determined.experimental import LogLevel

    names = [name for name in LogLevel.__members__ if name != "UNSPECIFIED"]
    if least.upper() not in names:
        raise ValueError(f"--level: {least!r}: expected one of {', '.join(names)}")
    return [f"LOG_LEVEL_{name}" for name in names[names.index(least.upper()) :]]


def _write(line: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        import json

        sys.stdout.write(json.dumps(line, sort_keys=True) + "\n")
    else:
        sys.stdout.write(str(line["message"]))
