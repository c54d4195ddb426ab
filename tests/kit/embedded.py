"""An embedded cluster driven by its commands, as a user does: for end-to-end and chaos tests, and for benches."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.kit import records
from tests.kit.fork_server import Busy, ForkServer
from tests.kit.patience import PATIENCE
from tests.kit.servers import REPOSITORY, environment_of_a_part, free_port

TORCH_PYTHON = REPOSITORY / ".venv-torch" / "bin" / "python"
PARTS = ("api", "orchestrator", "agent", "temporal")
#: What a start of a cluster loads. Its parts are copies of it: see `workers.processes`.
_LOADED = ("workers.embedded", "workers.api", "workers.orchestrator", "workers.agent")
#: Prefixes of the variables that change what a Python process loads. A copy has loaded its code already: a command for
#: which one of them differs from ours gets a process of its own.
_OF_THE_LOADER = ("LD_", "PYTHON")


_copies: ForkServer | None = None


@contextlib.contextmanager
def starting_as_copies() -> Generator[None]:
    """In this block clusters start without loading their code, which is most of the processor time that a start takes.

    Outside of it, as in benches, each loads it, as a user's does.
    """
    global _copies
    _copies = ForkServer(Path(sys.executable), _LOADED, os.environ)
    try:
        yield
    finally:
        _copies.close()
        _copies = None


def _of_the_loader(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_OF_THE_LOADER)}


class Embedded:
    """A cluster in a folder of its own, on ports of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        launcher: str = "process",
        slots: int = 2,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder / "home"
        self.code: Path | None = None  # a folder with another release's packages, for what is started from now on
        self.launcher = launcher
        self.slots = slots
        self.environment = {
            **os.environ,
            "UNDETERRED_HOME": str(self.folder),
            "UNDETERRED_STORAGE_ROOTS": str(folder.parent),  # where pytest's folders are
            "UNDETERRED_PORT": str(free_port()),
            "UNDETERRED_PROXY_PORT": str(free_port()),
            "UNDETERRED_TEMPORAL_PORT": str(free_port()),
            "UNDETERRED_TEMPORAL_UI_PORT": str(free_port()),
            "UNDETERRED_TRIAL_PYTHON": sys.executable,
            "UNDETERRED_ADMIN_PASSWORD": "correct horse",
            "DET_DEBUG_CONFIG_PATH": str(folder / "config"),
            **(environment or {}),
        }
        self.environment["DET_MASTER"] = f"http://localhost:{self.environment['UNDETERRED_PORT']}"

    def run(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """`python -m workers.embedded …`, of this repository or of `code`."""
        if _copies is not None and self.code is None and _of_the_loader(self.environment) == _of_the_loader(os.environ):
            words = ["workers.embedded", *arguments]
            with contextlib.suppress(Busy):
                return _copies.run(words, environment=self.environment, timeout_s=timeout_s)
        return self.module("workers.embedded", *arguments, timeout_s=timeout_s)

    def module(self, name: str, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """`python -m …`, of this repository or of `code`."""
        environment = self.environment if self.code is None else self.environment | {"PYTHONPATH": str(self.code)}
        command = [sys.executable, "-m", name, *arguments]
        return subprocess.run(
            command,
            env=environment,
            cwd=self.code,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def up(self) -> float:
        """Start; returns the seconds it took."""
        began = time.monotonic()
        done = self.run("up", "--launcher", self.launcher, "--slots", str(self.slots))
        assert done.returncode == 0, done.stdout + done.stderr
        return time.monotonic() - began

    @contextlib.contextmanager
    def stopped(self) -> Generator[Embedded]:
        """It, not started yet; at the end what runs of it by then is stopped."""
        try:
            yield self
        finally:
            self.run("down")

    @contextlib.contextmanager
    def started(self) -> Generator[Embedded]:
        """Up during the block; also what did not start is stopped."""
        with self.stopped():
            self.up()
            yield self

    def det(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """`det …`."""
        return self.module("cli", *arguments, timeout_s=timeout_s)

    def create(self, config: str, script: str) -> int:
        """Create an experiment of one script, by `det`; returns its id."""
        model = self.folder / "model"
        model.mkdir(exist_ok=True)
        (model / "train.py").write_text(script)
        path = self.folder / "config.yaml"
        path.write_text(config)
        return self.submit(path, model)

    def submit(self, config: Path, folder: Path, *options: str) -> int:
        """`det experiment create`, of a file and a folder; returns the experiment's id."""
        done = self.det("experiment", "create", str(config), str(folder), *options)
        assert done.returncode == 0, done.stdout + done.stderr
        return int(next(line for line in done.stdout.splitlines() if "Created experiment" in line).split()[-1])

    def until_trained(self, experiment: int, batches: int) -> None:
        """Until a trial of an experiment has reported so many batches."""
        query = f"SELECT coalesce(max(total_batches), 0) FROM trials WHERE experiment_id = {experiment}"
        what = f"experiment {experiment} trained {batches} batches"
        self.until(lambda: self.rows(query)[0][0] >= batches, 120, what)

    def until_state(self, experiment: int, state: str) -> None:
        """Until an experiment is in a state; one that failed is shown with its log."""
        deadline = time.monotonic() + 240 * PATIENCE
        query = f"SELECT state FROM experiments WHERE id = {experiment}"
        while (now := self.rows(query)[0][0]) != state:
            assert now != "ERROR", self.log(experiment)
            assert time.monotonic() < deadline, f"{now}\n{self.log(experiment)}"
            time.sleep(0.1)

    def log(self, experiment: int) -> str:
        """The log of an experiment's first trial."""
        ((trial,),) = self.rows(f"SELECT min(id) FROM trials WHERE experiment_id = {experiment}")
        return self.det("trial", "logs", str(trial)).stdout

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of its parts that it started itself: its Temporal may be another one."""
        return tuple(part for part in PARTS if part != "temporal" or "TEMPORAL_ADDRESS" not in self.environment)

    def pid(self, part: str) -> int:
        """The pid of a part."""
        return int(json.loads((self.folder / "run" / f"{part}.pid").read_text())["pid"])

    def another(self, part: str, **more: str) -> subprocess.Popen[bytes]:
        """Another process of a part, on the cluster's database and its Temporal; the caller ends it."""
        settings = {
            "UNDETERRED_DATABASE_URL": f"sqlite:///{self.folder / 'undeterred.db'}",
            "UNDETERRED_TEMPORAL_ADDRESS": f"127.0.0.1:{self.environment['UNDETERRED_TEMPORAL_PORT']}",
            **more,
        }
        environment = environment_of_a_part(settings)
        with (self.folder / "logs" / f"{part}-more.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", f"workers.{part}"], env=environment, stdout=log, stderr=log)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Look into the database's file, whoever is alive."""
        return records.rows(f"sqlite:///file:{self.folder / 'undeterred.db'}?mode=ro&uri=true", query)

    def training(self) -> dict[str, int]:
        """Allocation id to pid of each live process that runs `train.py`."""
        return {values["DET_ALLOCATION_ID"]: pid for pid, values in self._processes("train.py")}

    def trainers(self, experiment: int, program: str = "determined.exec.harness") -> list[int]:
        """The live processes that train for an experiment, by rank."""
        all_ = self._processes(program)
        own = [(pid, values) for pid, values in all_ if values.get("DET_EXPERIMENT_ID") == str(experiment)]
        return [pid for _, pid in sorted((int(values.get("RANK", 0)), pid) for pid, values in own)]

    def _processes(self, program: str) -> Iterator[tuple[int, dict[str, str]]]:
        """Pid and environment of each live process of a trial here that runs a program; what started it is none."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if program.encode() not in (entry / "cmdline").read_bytes().split(b"\0")[1:3]:  # after `-m` or `-u`
                    continue
                environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            values = dict(pair.split("=", 1) for pair in environment if "=" in pair)
            if str(self.folder) in values.get("DET_RUN_DIR", ""):
                yield int(entry.name), values

    def until(self, condition: Callable[[], Any], timeout_s: float, what: str, *, every_s: float = 0.05) -> None:
        """Wait for a condition, with a limit."""
        deadline = time.monotonic() + timeout_s * PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"waited {timeout_s:g} s until {what}"
            time.sleep(every_s)


@contextlib.contextmanager
def with_torch(folder: Path, **environment: str) -> Generator[Embedded]:
    """A started cluster of two slots whose trials have PyTorch."""
    assert TORCH_PYTHON.exists(), f"{TORCH_PYTHON} is missing: run `make .venv-torch/.installed`"
    environment["UNDETERRED_TRIAL_PYTHON"] = str(TORCH_PYTHON)
    with Embedded(folder, slots=2, environment=environment).started() as cluster:
        yield cluster
