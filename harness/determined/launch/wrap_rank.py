"""One worker of a job: `python3 -m determined.launch.wrap_rank RANK [--] command`.

Prefixes each line of its output with `[rank=N] `, which the cluster's logs take as the line's rank. RANK is a number,
or names of environment variables with commas between them, of which the first that is set counts. Before `--` it may
be left out: then it is what the launcher says (`RANK`, `HOROVOD_RANK`, `OMPI_COMM_WORLD_RANK`, `PMI_RANK`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from determined._fail import fail
from determined.launch import _gang, _stacks, _stall
from determined.launch._folder import GANG_DIR, GANG_RANK, STILL_WAITING, GangFolder, Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from io import BufferedReader
    from typing import Any

_NAMES = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WAITS = STILL_WAITING.encode()


def main() -> None:
    """Run the worker to its end, and end as it did."""
    argv = [word for at, word in enumerate(sys.argv[1:]) if at or word != "--no-redirect-stdio"]
    if argv[:1] == ["--"]:
        rank, command = next((os.environ[name] for name in _NAMES if os.environ.get(name)), "0"), argv[1:]
    else:
        rank, command = _rank(argv[0]) if argv else "", argv[2:] if argv[1:2] == ["--"] else argv[1:]
    if not command:
        fail("use: python3 -m determined.launch.wrap_rank RANK [--] command …")
    sys.exit(_run(rank, command))


def _rank(text: str) -> str:
    """RANK as it is written, or what the first of the variables that it names has."""
    if text.isdigit():
        return text
    name = next((name for name in text.split(",") if name in os.environ), None)
    if name is None:
        fail(f"RANK is {text!r}, but must be a number, or name an environment variable that is set")
    value = os.environ[name]
    if not value.isdigit():
        fail(f"RANK: the environment variable {name} is {value!r}, but must be a number")
    return value


def _run(rank: str, command: list[str]) -> int:
    env = {**os.environ, "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED") or "1"}
    folder = GangFolder(os.environ[GANG_DIR]) if os.environ.get(GANG_DIR) else None
    progress = Progress(folder.progress_path(rank) if folder else None)
    if folder:
        open(folder.progress_path(rank), "w").close()
        env[GANG_RANK] = rank
        if _stall.limit_s():
            env = _stacks.environment(env, folder, rank)
    try:
        # In a group of its own, so that it gets what the launcher's group gets once: from here.
        process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as e:
        if folder:
            folder.note_failure(rank, 127)
        fail(f"the command {command[0]!r} of rank {rank} can't be executed: {e.strerror}", 127)
    was_stopped = threading.Event()

    def forward(number: int, _: Any) -> None:
        if number != signal.SIGUSR1:
            was_stopped.set()
        process.send_signal(number)

    # What a whole group gets must not end this process before the worker.
    for name in _gang.FORWARDED:
        signal.signal(getattr(signal, name), forward)
    if folder:
        folder.note_start(rank, process.pid)
    prefix = f"[rank={rank}] ".encode()
    assert process.stdout is not None
    assert process.stderr is not None
    copies = [
        threading.Thread(target=_copy, args=(process.stdout, sys.stdout.fileno(), prefix, progress), daemon=True),
        threading.Thread(target=_copy, args=(process.stderr, sys.stderr.fileno(), prefix, progress), daemon=True),
    ]
    for copy in copies:
        copy.start()
    code = process.wait()
    for copy in copies:
        copy.join(5.0)  # a child of the worker may hold its output open for longer
    if folder:
        folder.note_end(rank, process.pid)
        # One that was told to stop is no cause.
        if code and not was_stopped.is_set():
            folder.note_failure(rank, code)
    return 128 - code if code < 0 else code


def _copy(source: BufferedReader, target: int, prefix: bytes, progress: Progress) -> None:
    begun: list[bytes] = []
    while chunk := source.read1(1 << 16):
        whole, newline, rest = chunk.rpartition(b"\n")
        lines = b"".join([*begun, whole]).split(b"\n") if newline else []
        begun = [rest] if newline else [*begun, rest]
        # A progress bar may go on for hours without ending its line.
        if rest or any(_WAITS not in line for line in lines):
            progress.note()
        _write(lines, target, prefix)
    if any(begun):
        _write([b"".join(begun)], target, prefix)


def _write(lines: list[bytes], target: int, prefix: bytes) -> None:
    for line in lines:
        # A line is one write: those of several workers must not mix.
        for part in line.rstrip(b"\r").split(b"\r"):
            data = prefix + part + b"\n"
            while data:
                data = data[os.write(target, data) :]


if __name__ == "__main__":
    main()
