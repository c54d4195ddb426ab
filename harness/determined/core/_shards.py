"""One checkpoint out of the parts of several workers."""

from __future__ import annotations

from determined import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_SHOWN = 5


def refuse_conflicts(parts: Sequence[Mapping[str, object]]) -> None:
    """Refuse parts that don't fit into one folder.

    Args:
        parts: By rank, the paths that a worker has; folders end with "/". Several workers may have the same folder.

    Raises:
        ValueError: Several workers have a file of the same path, or one has a file where another has a folder.
    """
    from determined.common.storage._tree import folders_of

    owners: dict[str, list[int]] = {}
    folders: dict[str, int] = {}
    for rank, part in enumerate(parts):
        for path in part:
            if not path.endswith("/"):
                owners.setdefault(path, []).append(rank)
        for folder in folders_of(part):
            folders.setdefault(folder, rank)
    problems = [
        f"{path!r} comes from ranks {', '.join(map(str, ranks))}"
        for path, ranks in sorted(owners.items())
        if len(ranks) > 1
    ]
    problems += [
        f"{path!r} is a file of rank {ranks[0]} and a folder of rank {folders[path + '/']}"
        for path, ranks in sorted(owners.items())
        if path + "/" in folders
    ]
    if problems:
        more = f", and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise ValueError(
            "the workers' parts of this checkpoint do not fit together: "
            + "; ".join(problems[:_SHOWN])
            + more
            + "; with shard=True each file must come from one worker: name files by rank, or pick them with selector"
        )


def merge_metadata(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The union of what the workers say, dictionaries within them too.

    Raises:
        ValueError: Two workers say different things under one key.
    """
    merged: dict[str, Any] = {}
    said_by: dict[tuple[str, ...], int] = {}
    for rank, part in enumerate(parts):
        _merge(merged, part, rank, said_by, ())
    return merged


def _merge(
    into: dict[str, Any],
    part: Mapping[str, Any],
    rank: int,
    said_by: dict[tuple[str, ...], int],
    above: tuple[str, ...],
) -> None:
    for key, value in part.items():
        path = (*above, key)
        known = into.get(key)
        if key not in into:
            said_by[path] = rank
            into[key] = {} if isinstance(value, dict) else value
            if isinstance(value, dict):
                _merge(into[key], value, rank, said_by, path)  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(known, dict) and isinstance(value, dict):
            _merge(known, value, rank, said_by, path)  # pyright: ignore[reportUnknownArgumentType]
        elif not _same(known, value):  # pyright: ignore[reportUnknownArgumentType]
            raise ValueError(
                f"metadata[{'.'.join(path)!r}] is {known!r} on rank {said_by[path]} and {value!r} on rank {rank}, but "
                "with shard=True the workers must say the same, or use keys of their own"
            )


def _same(one: object, other: object) -> bool:
    """Whether they are equal and of one type: 1 is not True."""
    return type(one) is type(other) and one == other


def checked_metadata(metadata: dict[str, Any] | None) -> dict[str, Any]:
    """A worker's metadata as JSON has it.

    Raises:
        InvalidDataTypeException: It is no dictionary, or JSON can't hold it.
    """
    from determined.core._convert import to_json_value

    if metadata is not None and not isinstance(metadata, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise errors.InvalidDataTypeException(
            f"a checkpoint's metadata must be a dictionary, but is of type {type(metadata).__name__}"
        )
    checked: dict[str, Any] = to_json_value(metadata or {}, "metadata")
    return checked


def require_steps(metadata: Mapping[str, Any]) -> None:
    """Refuse metadata that does not say how far the training is. Raises: ValueError."""
    steps = metadata.get("steps_completed")
    if not isinstance(steps, int) or isinstance(steps, bool):
        raise ValueError(
            "a checkpoint's metadata must contain steps_completed, an integer, "
            + ("but has none" if steps is None else f"but it is {steps!r}")
            + '; for example: store_path({"steps_completed": epochs_trained})'
        )
