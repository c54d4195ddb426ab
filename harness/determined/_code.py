"""The user's code, as it is put into checkpoints."""

from __future__ import annotations

import logging
import os
import shutil

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

logger = logging.getLogger("determined")


class Code:
    """The user's code as it is put into checkpoints: what the experiment was created with; else the current folder.

    Args:
        fetch: Returns the packed model directory of the experiment; None outside of a cluster.
        storage: Where checkpoints are. What is below it is no code, also where it is below the current folder.
    """

    def __init__(self, fetch: Callable[[], bytes] | None, storage: str) -> None:
        self._fetch = fetch
        self._storage = os.path.realpath(storage)
        self._packed: bytes | None = None
        self._told = False

    def __call__(self, folder: pathlib.Path) -> None:
        """Put the code into a folder, which is made."""
        from determined.common.context import files_of, unpack_context
        from determined.errors import InvalidContextException

        folder.mkdir(mode=0o755, parents=True)
        if self._fetch is not None:
            if self._packed is None:
                self._packed = self._fetch()
            unpack_context(self._packed, folder)
            return
        try:
            files = files_of(os.getcwd(), lambda path: os.path.realpath(path) == self._storage)
        except InvalidContextException as error:
            if not self._told:
                self._told = True
                logger.warning(f"checkpoints are saved without your code: {error}")
            return
        for name, path in files:
            target = folder / name
            if path.is_dir():
                target.mkdir(exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
