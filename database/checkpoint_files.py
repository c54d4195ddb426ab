"""Whether the files of checkpoints are where their experiments' configurations say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from determined import errors
from determined.common.storage import FileEntry
from determined.common.storage.hosted import Claim, Hosted, hosted


class Kept(NamedTuple):
    """A checkpoint that has files, by its record."""

    uuid: str
    experiment_id: int
    trial_id: int
    task_id: str
    is_of_container: bool
    state: str
    storage: Mapping[str, Any]
    resources: Mapping[str, int]


class Checked(NamedTuple):
    """What was found of a checkpoint. `missing`: names of files; `unknown`: why this host can't tell."""

    kept: Kept
    missing: list[str]
    unknown: str = ""


def checked(kept: Iterable[Kept], roots: Sequence[str]) -> Iterator[Checked]:
    """Look for the files of each checkpoint: for their names and sizes, not at their content.

    Args:
        kept: By experiment, as a storage is opened once for each.
        roots: Folders that the operator named for checkpoints.
    """
    place: Hosted | None = None
    of, problem = 0, ""
    try:
        for each in kept:
            if each.experiment_id != of:
                if place is not None:
                    place.close()
                of, problem = each.experiment_id, ""
                try:
                    place = hosted(each.storage, roots)
                    problem = "" if place is not None else "it lived and died with its container"
                except (errors.DeterminedException, OSError, ValueError) as error:
                    place, problem = None, str(error)
            yield _looked(each, place) if place is not None else Checked(each, [], problem)
    finally:
        if place is not None:
            place.close()


def _looked(each: Kept, place: Hosted) -> Checked:
    claim = Claim(each.uuid, each.task_id, each.resources, is_of_container=each.is_of_container)
    try:
        found = place.files(claim)
    except (errors.CheckpointNotFound, errors.CheckpointCorruptError, FileNotFoundError):
        return Checked(each, sorted(each.resources) or [each.uuid])
    except (errors.DeterminedException, OSError, ValueError) as error:
        return Checked(each, [], str(error))
    missing = [path for path, size in each.resources.items() if not _is_there(place, each.uuid, path, size, found)]
    return Checked(each, sorted(missing))


def _is_there(place: Hosted, uuid: str, path: str, size: int, found: Mapping[str, FileEntry]) -> bool:
    """A manifest says what was written: whether a file still is, its storage says."""
    entry = found.get(path)
    if entry is None or (not path.endswith("/") and entry.size not in (size, 0)):
        return False
    try:
        place.mode(uuid, path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
