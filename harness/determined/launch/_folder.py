"""The folder that a launcher shares with the workers of its container (`DET_GANG_DIR`).

In it are, by rank: a file for each worker that runs, a note of how each that failed has ended, a file whose time says
when the worker last went on, and one that takes the worker's stacks.
"""

from __future__ import annotations

import json
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GANG_DIR = "DET_GANG_DIR"
GANG_RANK = "DET_GANG_RANK"
# What a worker writes while it waits for another: no sign that it goes on.
STILL_WAITING = "still waiting for"
# A worker may go on a thousand times a second; its launcher looks twice.
_NOTE_EVERY_S = 0.1


class GangFolder:
    """The folder, for a launcher and for `wrap_rank`.

    Attributes:
        path: Of the folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def note_start(self, rank: str, pid: int) -> None:
        """Note that a worker runs."""
        open(os.path.join(self.path, f"worker-{rank}-{pid}"), "w").close()

    def note_end(self, rank: str, pid: int) -> None:
        """Note that a worker runs no more."""
        try:
            os.unlink(os.path.join(self.path, f"worker-{rank}-{pid}"))
        except FileNotFoundError:
            return  # somebody has cleaned up /tmp: no reason for a worker to fail

    def running(self) -> dict[int, str]:
        """The workers that run: the rank of each, by the id of its process."""
        names = [name.split("-") for name in self._names("worker-")]
        return {int(pid): rank for _, rank, pid in names}

    def note_failure(self, rank: str, returncode: int) -> None:
        """Note how a worker failed."""
        note: dict[str, Any] = {"rank": rank, "returncode": returncode, "time": time.time()}
        temporary = os.path.join(self.path, f".{rank}.tmp")
        with open(temporary, "w", encoding="utf-8") as f:
            json.dump(note, f)
        os.replace(temporary, os.path.join(self.path, f"failed-{rank}"))

    def first_failure(self) -> dict[str, Any] | None:
        """The note of the worker that failed first, with its `rank` and `returncode`."""
        notes: list[dict[str, Any]] = []
        for name in self._names("failed-"):
            with open(os.path.join(self.path, name), encoding="utf-8") as f:
                notes.append(json.load(f))
        return min(notes, key=lambda note: note["time"], default=None)

    def stacks_path(self, rank: str) -> str:
        """The file that takes the stacks of a worker."""
        return os.path.join(self.path, f"stacks-{rank}")

    def progress_path(self, rank: str) -> str:
        """The file whose time says when a worker last went on."""
        return os.path.join(self.path, f"progress-{rank}")

    def progress(self) -> dict[str, int]:
        """When each worker last went on. The clock may be set meanwhile: only whether this changes means something."""
        names = self._names("progress-")
        return {name: os.stat(os.path.join(self.path, name)).st_mtime_ns for name in names}

    def _names(self, prefix: str) -> list[str]:
        try:
            return [name for name in os.listdir(self.path) if name.startswith(prefix)]
        except FileNotFoundError:
            return []  # somebody has cleaned up /tmp: the workers go on, but nothing is known of them


class Progress:
    """A worker's word to its launcher, or to `core._silence`, that it goes on.

    Args:
        path: The worker's `progress_path`; None if no launcher looks.

    Attributes:
        count: How often any was noted in this process.
    """

    count = 0

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._noted_at = 0.0

    @classmethod
    def of_this_process(cls) -> Progress:
        """As the environment says."""
        folder, rank = os.environ.get(GANG_DIR), os.environ.get(GANG_RANK)
        return cls(GangFolder(folder).progress_path(rank) if folder and rank else None)

    def note(self) -> None:
        """This worker has just gone on. Costs nothing when called often."""
        Progress.count += 1
        now = time.monotonic()
        if self._path is None or now - self._noted_at < _NOTE_EVERY_S:
            return
        self._noted_at = now
        try:
            os.utime(self._path)
        except OSError:
            self._path = None  # its launcher has ended, or is another user's: nobody looks
