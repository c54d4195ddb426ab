"""TensorBoard: folders with event files. Each folder that has some is a run, as TensorBoard itself sees it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cli.trackers.runs import Point, Run, Source, Unreadable, moment

_EVENTS = "tfevents"
#: The summary in which the plugin for hyperparameters keeps them.
_HPARAMS = "_hparams_/session_start_info"


def read(folder: Path) -> Iterator[Source]:
    """The runs below a folder. Raises: Unreadable."""
    if not folder.is_dir():
        raise Unreadable(f"{folder} is no folder")
    if importlib.util.find_spec("tensorboard") is None:
        raise Unreadable("event files are read by the package tensorboard: `pip install tensorboard`") from None
    folder = folder.resolve()
    found = [(Path(parent), sorted(name for name in names if _EVENTS in name)) for parent, _, names in os.walk(folder)]
    found = sorted((parent, names) for parent, names in found if names)
    if not found:
        raise Unreadable(f"{folder} has no event files, which have `{_EVENTS}` in their names")
    runs = (_run(folder, parent, names) for parent, names in found)
    yield Source(f"tensorboard:{folder}"[-255:], folder.name, runs)


def _run(root: Path, folder: Path, names: list[str]) -> Run:
    name = folder.relative_to(root).as_posix()
    run = Run(key=name if name != "." else root.name, name=name if name != "." else root.name)
    first, last = float("inf"), 0.0
    for each in names:
        for event in _events(folder / each):
            if event.HasField("file_version"):
                continue
            first, last = min(first, event.wall_time), max(last, event.wall_time)
            for value in event.summary.value:
                if value.tag == _HPARAMS:
                    run.params.update(_hparams(value))
                elif (number := _scalar(value)) is not None:
                    run.points.append(Point(value.tag, int(event.step), event.wall_time, number))
    if last:
        run.started, run.ended = moment(first), moment(last)
    return run


def _events(path: Path) -> Iterator[Any]:
    loader = _module("backend.event_processing.event_file_loader")
    errors = _module("compat.tensorflow_stub.errors")
    try:
        yield from loader.EventFileLoader(str(path)).Load()  # older forms come in the newest one
    except errors.DataLossError:
        return  # the end of a file whose writer died
    except Exception as error:  # noqa: BLE001 - the package raises whatever its parser does
        raise Unreadable(f"{path}: it is no event file: {str(error)[:200]}") from None


def _module(name: str) -> Any:
    """Of the package, which has no types, and is not of what `det` needs."""
    return importlib.import_module(f"tensorboard.{name}")


def _scalar(value: Any) -> float | None:
    if value.metadata.plugin_data.plugin_name != "scalars" and not value.HasField("simple_value"):
        return None
    if value.HasField("simple_value"):
        return float(value.simple_value)
    found = _module("util.tensor_util").make_ndarray(value.tensor)
    return float(found.reshape(-1)[0]) if found.size == 1 else None


def _hparams(value: Any) -> dict[str, Any]:
    data = _module("plugins.hparams.plugin_data_pb2").HParamsPluginData.FromString(value.metadata.plugin_data.content)
    kinds = ("bool_value", "number_value", "string_value")
    found: dict[str, Any] = {}
    for name, each in data.session_start_info.hparams.items():
        kind = each.WhichOneof("kind")
        if kind in kinds:
            found[str(name)] = getattr(each, kind)
    return found
