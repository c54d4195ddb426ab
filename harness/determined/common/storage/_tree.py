"""Folders as lists of relative paths; those of folders end with "/"."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Callable, TypeVar

    Selector = Callable[[str], bool]
    V = TypeVar("V")


def list_tree(folder: str) -> dict[str, int]:
    """Relative path -> size of all that is below `folder`, sorted; folders end with "/" and have size 0."""
    found: dict[str, int] = {}
    for path, folders, files in os.walk(folder, followlinks=True):
        below = os.path.relpath(path, folder)
        prefix = "" if below == "." else below + "/"
        here = os.path.realpath(path)
        # A link to a folder above itself would never end.
        folders[:] = [n for n in folders if not is_below(here, os.path.realpath(os.path.join(path, n)))]
        for name in folders:
            found[f"{prefix}{name}/"] = 0
        for name in files:
            found[prefix + name] = os.path.getsize(os.path.join(path, name))
    return dict(sorted(found.items()))


def select(paths: Mapping[str, V], selector: Selector | None) -> dict[str, V]:
    """The part of `list_tree` that `selector` wants, with the folders that it needs."""
    if selector is None:
        return dict(paths)
    wanted = {p for p in paths if selector(p)}
    wanted |= folders_of(wanted)
    return {p: value for p, value in paths.items() if p in wanted}


def folders_of(paths: Iterable[str]) -> set[str]:
    """The folders that these paths lie in or are, each with "/" at its end."""
    found: set[str] = set()
    for path in paths:
        folder = path[:-1] if path.endswith("/") else os.path.dirname(path)
        while folder and folder + "/" not in found:
            found.add(folder + "/")
            folder = os.path.dirname(folder)
    return found


def make_folders(root: str, paths: Iterable[str]) -> None:
    """Make the folders below `root` that these paths lie in or are."""
    os.makedirs(root, exist_ok=True)
    for folder in sorted(folders_of(paths)):
        os.makedirs(os.path.join(root, folder), exist_ok=True)


def is_below(filename: object, root: str) -> bool:
    """Whether `filename` is `root` or a path below it, by its letters."""
    return isinstance(filename, str) and (filename == root or filename.startswith(root.rstrip("/") + "/"))
