"""Writing checkpoints while training goes on."""

from __future__ import annotations

import json
import pickle
import threading
from typing import Any

import torch

from determined.pytorch import _state

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from determined.core import Context


class CheckpointWriter:
    """Writes one checkpoint at a time in a thread of its own, on the chief. The next call raises what fails there.

    Args:
        core: Where checkpoints go.
        load_data: The content of `load_data.json`.
        code: Puts the user's code into a folder.
    """

    def __init__(self, core: Context, load_data: dict[str, Any], code: Callable[[pathlib.Path], None]) -> None:
        self._core = core
        self._load_data = load_data
        self._code = code
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._uuid = ""

    def write(
        self,
        files: dict[str, Any],
        loop: dict[str, Any],
        metadata: dict[str, Any],
        written: Callable[[str], None] | None = None,
    ) -> None:
        """Write a checkpoint; returns before it is written, unless `written` wants to add to it.

        Args:
            files: Name -> what `torch.save` writes; nobody may change it any more.
            loop: The content of `trial_state.pkl`.
            metadata: Of the checkpoint.
            written: Called with the folder, in this thread, once all files are in it and before it is uploaded.
        """
        self.wait()
        if written is not None:
            self._store(files, loop, metadata, written)
            return
        self._thread = threading.Thread(
            target=self._run, args=(files, loop, metadata), name="determined-checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> str:
        """Wait until the last checkpoint is uploaded; its id. Raises: whatever writing it has raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._uuid

    def check(self) -> None:
        """Raise what writing has raised, without waiting."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def _run(self, files: dict[str, Any], loop: dict[str, Any], metadata: dict[str, Any]) -> None:
        try:
            self._store(files, loop, metadata, None)
        except BaseException as error:  # noqa: BLE001 - for the thread that trains
            self._error = error

    def _store(
        self,
        files: dict[str, Any],
        loop: dict[str, Any],
        metadata: dict[str, Any],
        written: Callable[[str], None] | None,
    ) -> None:
        with self._core.checkpoint.store_path(metadata) as (folder, uuid):
            for name, content in files.items():
                torch.save(content, folder / name)  # pyright: ignore[reportUnknownMemberType]
            (folder / _state.LOOP_FILE).write_bytes(pickle.dumps(loop))
            (folder / _state.LOAD_FILE).write_text(json.dumps(self._load_data, default=str))
            self._code(folder / "code")
            if written is not None:
                written(str(folder))
        self._uuid = uuid
