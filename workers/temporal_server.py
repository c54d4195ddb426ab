"""Finding or getting Temporal's dev server, and the options that make it fit for the embedded cluster."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

from workflows.names import SEARCH_ATTRIBUTES

#: The newest tag that `go install` can build.
GO_MODULE = "github.com/temporalio/cli/cmd/temporal@v1.5.1"

#: The defaults cost 100 ms an activity and a second a short timer; with these it is about 10 ms.
_FAST = (
    "history.transferProcessorMaxPollRPS=2000",
    "history.timerProcessorMaxPollRPS=2000",
    "history.visibilityProcessorMaxPollRPS=200",
    'history.timerProcessorMaxTimeShift="10ms"',
    "matching.useNewMatcher=true",  # the one that knows priorities
    "system.enableActivityEagerExecution=true",  # records are written without a way through the task queue
)


class NoTemporal(Exception):
    """There is no Temporal server, and none could be had. The message says what to do."""


def cache_folder() -> Path:
    """Where programs are kept that we got ourselves."""
    configured = os.environ.get("UNDETERRED_CACHE")
    if configured:
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "undeterred"


def find_or_get(say: Callable[[str], None]) -> Path:
    """The `temporal` program: on PATH, got before, the SDK's own download, or built with Go. Raises: NoTemporal."""
    on_path = shutil.which("temporal")
    if on_path:
        return Path(on_path)
    folder = cache_folder() / "bin"
    if found := _found(folder):
        return found
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who comes while another one builds, waits, and finds it
        return _found(folder) or _got(folder, say)


def _found(folder: Path) -> Path | None:
    built = folder / "temporal"
    return built if built.exists() else next(iter(sorted(folder.glob("temporal-sdk-python-*"))), None)


def _got(folder: Path, say: Callable[[str], None]) -> Path:
    say("asking Temporal's SDK for its dev server …")
    # in a process of its own: the SDK's threads stay for good, and `det up` makes copies of its process
    subprocess.run([sys.executable, "-m", "workers.temporal_server", str(folder)], check=False)
    if downloaded := _found(folder):
        return downloaded
    go = shutil.which("go")
    if go is None:
        raise NoTemporal(
            "no Temporal server: `temporal` is not on PATH, the SDK's download is not reachable, and there is no Go to "
            "build it with. Install the Temporal CLI or Go, or set TEMPORAL_ADDRESS to a running cluster."
        )
    say("building Temporal's dev server with Go, once; this takes about 3 minutes …")
    # built in a folder of its own and then moved: killed half-way, nothing half-done is found next time
    partial = folder / "building"
    # what only a debugger reads is left out: that takes a tenth of the time
    environment = os.environ | {"GOBIN": str(partial), "GOFLAGS": "-mod=mod -gcflags=all=-dwarf=false"}
    done = subprocess.run([go, "install", GO_MODULE], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoTemporal(f"Temporal could not be built with Go: {done.stderr.strip()[-500:]}")
    os.replace(partial / "temporal", folder / "temporal")
    return folder / "temporal"


async def _download(folder: str) -> None:
    from temporalio.testing import WorkflowEnvironment

    try:
        async with await asyncio.wait_for(
            WorkflowEnvironment.start_local(  # pyright: ignore[reportUnknownMemberType]
                download_dest_dir=folder
            ),
            timeout=180,
        ):
            pass
    except (RuntimeError, TimeoutError) as error:
        print(f"the SDK's download is not to be had ({str(error).splitlines()[0][:120]})")  # noqa: T201


def command(program: Path, *, port: int, ui_port: int, database: Path, durable: bool = True) -> list[str]:
    """The command line of an embedded server. `durable` survives a power cut; tests do without."""
    line = [str(program), "server", "start-dev", "--ip", "127.0.0.1", "--port", str(port), "--log-level", "warn"]
    line += ["--ui-port", str(ui_port), "--ui-ip", "127.0.0.1"] if ui_port else ["--headless"]
    line += ["--db-filename", str(database)]
    line += ["--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", f"synchronous={'FULL' if durable else 'NORMAL'}"]
    for option in _FAST:
        line += ["--dynamic-config-value", option]
    for name, kind in SEARCH_ATTRIBUTES.items():
        line += ["--search-attribute", f"{name}={kind}"]
    return line


@contextlib.contextmanager
def unhashed(program: Path, folder: Path) -> Generator[Path]:
    """The file to start the server by, within the block, so that it does not read all of its program.

    Its own workers give as their version the MD5 of the file at the path that they were started by. Nobody asks for
    it, and of 240 MB it takes 0.3 s of processor time, and as long until the server answers. So it is started by a
    second name of the program, in `folder`; at the end of the block a file of some bytes takes this name. Where the
    program can have no second name, it is started by its own.
    """
    name = folder / "temporal"
    has_name = _gave_name(program, name)
    try:
        yield name if has_name and os.access(name, os.X_OK) else program  # programs of some disks may not be executed
    finally:
        if has_name:
            with contextlib.suppress(OSError):  # a full disk: then it reads its program
                stand_in = name.with_suffix(".stand-in")
                stand_in.write_text(f"This was {program} while it started: see workers.temporal_server.unhashed.\n")
                stand_in.replace(name)


def _gave_name(program: Path, name: Path) -> bool:
    """Give a program a second name. False where that can't be, or where it would be taken for the program's own."""
    try:
        with program.open("rb") as file:
            if file.read(4) != b"\x7fELF":  # a script is read by its interpreter, from a name that must stay
                return False
        if program.resolve().parent == name.parent.resolve():  # `find_or_get` looks there
            return False
        name.unlink(missing_ok=True)
        name.hardlink_to(program.resolve())
    except OSError:  # on another disk, or another user's
        return False
    return True


if __name__ == "__main__":
    asyncio.run(_download(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # a thread of the SDK that comes back into an interpreter that is being taken down ends it with a dump
