"""Weights & Biases: the folders of its offline mode.

A folder has one file with records: the framing of LevelDB's logs, each record a message of protobuf. The newest package
has no reader of it in Python, so that the few fields that are needed are read here, by their numbers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cli.trackers.runs import Point, Run, Source, Unreadable, moment

_MAGIC = b":W&B\xe1\xbe"
_BLOCK, _HEAD = 32 * 1024, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MOST_RECORD = 64 * 2**20
#: Numbers of fields: of a record, and of what it is of.
_HISTORY, _SUMMARY, _CONFIG, _RUN, _EXIT = 2, 3, 5, 17, 18
_KEY, _NESTED_KEY, _VALUE = 1, 2, 16
_ENDED_WELL = 0


def read(folder: Path) -> Iterator[Source]:
    """The projects of the runs in a folder, of which the runs are `offline-run-…`. Raises: Unreadable."""
    if not folder.is_dir():
        raise Unreadable(f"{folder} is no folder")
    files = sorted(
        {*folder.glob("run-*.wandb"), *folder.glob("*run-*/run-*.wandb"), *folder.glob("wandb/*run-*/run-*.wandb")}
    )
    files = [path for path in files if not path.parent.is_symlink()]
    if not files:
        raise Unreadable(f"{folder} has no `offline-run-…/run-….wandb`")
    projects: dict[str, list[Path]] = {}
    for path in files:
        projects.setdefault(_project(path), []).append(path)
    for project, mine in sorted(projects.items()):
        yield Source(f"wandb:{project}"[:255], project, map(_run, mine))


def _project(path: Path) -> str:
    """Of a run; it is among the first records."""
    for record in _records(path):
        for about in record.get(_RUN, ()):
            return _text(_fields(about).get(3)) or "uncategorized"
    raise Unreadable(f"{path}: it does not say which run it is of")


def _run(path: Path) -> Run:
    run = Run(key=path.stem.removeprefix("run-"), name=path.stem, state="PAUSED")
    last = 0.0
    for record in _records(path):
        for about in map(_fields, record.get(_RUN, ())):
            _describe(run, about)
        for change in record.get(_CONFIG, ()):
            _configure(run, change)
        for row in record.get(_HISTORY, ()):
            last = max(last, _add(run, row))
        for end in map(_fields, record.get(_EXIT, ())):
            run.state = "COMPLETED" if _number(end.get(1)) == _ENDED_WELL else "ERROR"
    if last and run.state != "PAUSED":
        run.ended = moment(last)
    return run


def _describe(run: Run, about: dict[int, list[Any]]) -> None:
    run.key = _text(about.get(1)) or run.key
    run.name = _text(about.get(8)) or run.key
    for each in about.get(4, ()):
        _configure(run, each)
    for number, name in ((6, "group"), (7, "job_type"), (9, "notes"), (12, "sweep")):
        if text := _text(about.get(number)):
            run.tags[name] = text
    run.tags |= {_decoded(tag): "" for tag in about.get(10, ())}
    if started := about.get(17):
        time = _fields(started[-1])
        run.started = moment(_number(time.get(1)) + _number(time.get(2)) / 1e9)


def _configure(run: Run, change: bytes) -> None:
    for item in _fields(change).get(1, ()):
        key, value = _item(item)
        if key and not key.startswith("_wandb"):
            run.params[key] = value


def _add(run: Run, row: bytes) -> float:
    """A row of the history; when it was."""
    fields = _fields(row)
    values = dict(map(_item, fields.get(1, ())))
    step_fields = _fields(fields[2][-1]) if 2 in fields else {}
    step = values.pop("_step", None)
    step = int(step) if isinstance(step, int | float) else _number(step_fields.get(1))
    at = values.pop("_timestamp", 0.0)
    at = float(at) if isinstance(at, int | float) else 0.0
    for name, value in values.items():
        if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
            value = float(value.replace("Infinity", "inf"))
        if isinstance(value, int | float) and not name.startswith("_"):
            run.points.append(Point(name, step, at, float(value)))
    return at


def _item(data: bytes) -> tuple[str, Any]:
    fields = _fields(data)
    key = _text(fields.get(_KEY)) or ".".join(map(_decoded, fields.get(_NESTED_KEY, ())))
    try:
        return key, json.loads(_text(fields.get(_VALUE)) or "null")
    except ValueError:
        return key, None


# -- the file ----------------------------------------------------------------------------------------------------------


def _records(path: Path) -> Iterator[dict[int, list[Any]]]:
    """The fields of each record. What a writer that died left unfinished at the end is left out."""
    with path.open("rb") as file:
        block = file.read(_BLOCK)
        if not block.startswith(_MAGIC):
            raise Unreadable(f"{path}: it is no file of Weights & Biases")
        place, parts = _HEAD, b""
        while block:
            while len(block) - place >= _HEAD:
                _, size, kind = struct.unpack_from("<IHB", block, place)
                piece = block[place + _HEAD : place + _HEAD + size]
                place += _HEAD + size
                if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or len(piece) < size:
                    return
                parts = piece if kind in (_FULL, _FIRST) else parts + piece
                if len(parts) > _MOST_RECORD:
                    raise Unreadable(f"{path}: a record of more than {_MOST_RECORD} bytes")
                if kind in (_FULL, _LAST):
                    yield _fields(parts)
            block, place = file.read(_BLOCK), 0


def _fields(data: bytes) -> dict[int, list[Any]]:
    """The fields of a message of protobuf by their numbers: integers, or bytes. Raises: Unreadable."""
    found: dict[int, list[Any]] = {}
    place = 0
    try:
        while place < len(data):
            tag, place = _varint(data, place)
            kind = tag & 7
            if kind == 0:
                value, place = _varint(data, place)
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
                value, place = data[place : place + size], place + size
            elif kind == 2:
                size, place = _varint(data, place)
                value, place = data[place : place + size], place + size
            else:
                raise Unreadable("a record is none of protobuf")
            if place > len(data):
                raise Unreadable("a record is cut off")
            found.setdefault(tag >> 3, []).append(value)
    except IndexError:
        raise Unreadable("a record is cut off") from None
    return found


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value - 2**64 if value >= 2**63 else value, place
    raise Unreadable("a record is none of protobuf")


def _text(values: list[Any] | None) -> str:
    return _decoded(values[-1]) if values else ""


def _decoded(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _number(values: list[Any] | None) -> int:
    return values[-1] if values and isinstance(values[-1], int) else 0
