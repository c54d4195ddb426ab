"""A published client against a cluster of its own: its `det`, its Python, what it saw."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.compat.proxy import Proxy, recording
from tests.compat.record import NOT_YET, OWN_FAULT, WORKS, Record
from tests.kit.embedded import Embedded
from tests.kit.fork_server import ForkServer
from tests.kit.servers import REPOSITORY

GENERATIONS = ("0.38.1", "0.21.0")
MODEL = Path(__file__).with_name("model")
PASSWORD = "Correct-Horse-7"
_NOT_YET = re.compile(
    r"not (yet )?(supported|served|enforced)|later|this cluster has none|Enterprise Edition is required"
)
_CREATED = re.compile(r"Created experiment (\d+)")

Done = subprocess.CompletedProcess[str]


def environment_of(generation: str) -> Path:
    """The virtual environment with the published client. `make test` makes it."""
    folder = REPOSITORY / f".venv-compat-{generation}"
    assert (folder / ".installed").exists(), f"{folder} is missing: run `make {folder.name}/.installed`"
    return folder


def experiment_config(generation: str, **more: Any) -> dict[str, Any]:
    """A configuration for `model/train.py`; its trials run the published harness."""
    python = environment_of(generation) / "bin" / "python"
    return {
        "name": "compat",
        "entrypoint": "python3 train.py",
        "environment": {"environment_variables": [f"DET_PYTHON_EXECUTABLE={python}"]},
        "hyperparameters": {"sleep": 0},
        "searcher": {"name": "single", "metric": "accuracy", "smaller_is_better": False, "max_length": 6},
        "checkpoint_policy": "none",
        "max_restarts": 0,
    } | more


@dataclass
class Published:
    """One generation."""

    generation: str
    cluster: Embedded
    proxy: Proxy
    record: Record
    folder: Path

    def __post_init__(self) -> None:
        """`det` takes a second to load, and is loaded once for all commands."""
        loaded = ("determined.cli.__main__", "determined.cli.cli", "numpy")
        self._det = ForkServer(environment_of(self.generation) / "bin" / "python", loaded, self.environment)

    @property
    def is_new(self) -> bool:
        """Whether this is 0.38.1."""
        return self.generation == GENERATIONS[0]

    @property
    def environment(self) -> dict[str, str]:
        """What its processes see. Nothing of the host's own Determined or Undeterred."""
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("DET_", "UNDETERRED_", "PYTHON"))
        }
        return kept | {
            "PATH": f"{environment_of(self.generation) / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "DET_MASTER": self.proxy.url,
            "DET_DEBUG_CONFIG_PATH": str(self.folder / "config"),
            "HOME": str(self.folder),
            "COLUMNS": "200",
        }

    def run(
        self, *words: str, stdin: str = "", cwd: Path | None = None, timeout_s: float = 60, **environment: str
    ) -> Done:
        """Run a program of its environment."""
        env = self.environment | environment
        folder = environment_of(self.generation) / "bin"
        program = folder / words[0]
        if words[0] == "det":
            words = (str(program), *words[1:])
            return self._det.run(words, stdin=stdin, cwd=cwd or self.folder, environment=env, timeout_s=timeout_s)
        # A session of its own has no terminal, so that prompts for passwords read from `stdin`.
        return subprocess.run(
            [program, *words[1:]],
            env=env,
            cwd=cwd or self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            start_new_session=True,
        )

    def close(self) -> None:
        """End what it keeps running."""
        self._det.close()

    def det(self, *words: str, **options: Any) -> str:
        """Run `det` for its effect, outside of any record; returns what it printed."""
        done = self.run("det", *words, **options)
        assert done.returncode == 0, f"det {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def write(self, name: str, content: Any) -> str:
        """A file in its folder, JSON (which is YAML) unless it is text; returns its path."""
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    def create(self, *options: str, **more: Any) -> int:
        """Create an experiment, outside of any record; returns its id."""
        path = self.write("experiment.yaml", experiment_config(self.generation, **more))
        return created(self.det("experiment", "create", path, str(MODEL), *options))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Look into the database."""
        return self.cluster.rows(query)

    def wait_for(self, experiment: int, state: str = "COMPLETED", timeout_s: float = 60) -> None:
        """Until an experiment is in a state."""
        query = f"SELECT state FROM experiments WHERE id = {experiment}"
        self.cluster.until(lambda: self.rows(query) == [(state,)], timeout_s, f"experiment {experiment} is {state}")

    @contextlib.contextmanager
    def commands(self) -> Generator[Commands]:
        """Run commands and record each; what went wrong is told at the end, so that one does not hide the next."""
        commands = Commands(self)
        try:
            yield commands
        except Exception as error:
            if commands.problems:  # most likely why
                raise AssertionError("\n".join([*commands.problems, f"and then: {error!r}"])) from error
            raise
        assert not commands.problems, "\n".join(["", *commands.problems])


@dataclass
class Commands:
    """Commands of `det`, each recorded under its name."""

    client: Published
    problems: list[str] = field(default_factory=list[str])

    def __call__(
        self,
        name: str,
        *words: object,
        expect: str = "",
        differs: str = "",
        stdin: str = "",
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Run `det <name> <words>`: it must succeed, and print what matches `expect`. Returns what it printed.

        Args:
            expect: A regular expression.
            differs: How the behaviour that `expect` describes differs from Determined's, if it does.
        """
        done = self._run(name, words, stdin, cwd, environment or {})
        if done.returncode != 0 or "Traceback" in done.stderr:
            self._fails(name, words, done, f"exit code {done.returncode}")
        elif not re.search(expect, done.stdout, re.DOTALL):
            self._fails(name, words, done, f"nothing printed matches {expect!r}")
        else:
            result = f"differs: {differs}" if differs else WORKS
            self.client.record.command(self.client.generation, name, result)
        return done.stdout

    def json(self, name: str, *words: object) -> Any:
        """As a call, for commands that print JSON."""
        printed = self(name, *words)
        try:
            return json.loads(printed)
        except ValueError:
            self.problems.append(f"det {name}: expected JSON, got {printed[:200]!r}")
            return None

    def not_yet(self, name: str, *words: object, stdin: str = "") -> None:
        """A command that this release does not serve: it must end with a sentence that says so."""
        done = self._run(name, words, stdin, None, {})
        said = done.stderr + done.stdout
        if done.returncode == 0:
            self.problems.append(f"det {name} works now: expect it to, instead of not yet")
        elif "Traceback" in said or "there is no /" in said or not _NOT_YET.search(said):
            self._fails(name, words, done, "expected a sentence that this is not supported yet")
        self.client.record.command(self.client.generation, name, NOT_YET)

    def refused(self, name: str, *words: object, because: str) -> None:
        """A command that must fail with words that match `because`."""
        done = self._run(name, words, "", None, {})
        if done.returncode == 0 or "Traceback" in done.stderr or not re.search(because, done.stderr + done.stdout):
            self._fails(name, words, done, f"expected to be refused because {because!r}")
        else:
            self.client.record.command(self.client.generation, name, WORKS)

    def own_fault(self, name: str, *words: object, how: str, expect: str = "") -> None:
        """A command that the published client itself gets wrong, whatever a server answers.

        Args:
            how: What it does, for the page of compatibility.
            expect: What tells that it still does, in what it prints: a regular expression. Default: that it fails.
        """
        done = self._run(name, words, "", None, {})
        if expect:
            is_wrong = done.returncode == 0 and re.search(expect, done.stdout, re.DOTALL) is not None
        else:
            is_wrong = done.returncode != 0
        if is_wrong:
            self.client.record.command(self.client.generation, name, f"{OWN_FAULT} {how}")
        else:
            self._fails(name, words, done, f"expected that the client {how}")

    def _run(
        self, name: str, words: tuple[object, ...], stdin: str, cwd: Path | None, environment: Mapping[str, str]
    ) -> Done:
        line = [*name.split(), *(str(word) for word in words)]
        return self.client.run("det", *line, stdin=stdin, cwd=cwd, **environment)

    def _fails(self, name: str, words: tuple[object, ...], done: Done, why: str) -> None:
        lines = [line for line in (done.stderr.strip() or done.stdout.strip()).splitlines() if line.strip()]
        last = lines[-1].strip()[:300] if lines else "nothing was printed"
        self.client.record.command(self.client.generation, name, f"fails: {last}")
        shown = " ".join(str(word) for word in words)
        self.problems.append(
            f"det {name} {shown}: {why}\n    stdout: {done.stdout[-600:]}\n    stderr: {done.stderr[-600:]}"
        )


def created(printed: str) -> int:
    """The id that `det experiment create` prints."""
    found = _CREATED.search(printed)
    assert found, f"expected 'Created experiment <id>', got {printed!r}"
    return int(found.group(1))


@contextlib.contextmanager
def published(generation: str, folder: Path, record: Record) -> Generator[Published]:
    """A cluster with plain processes, for one generation. What its clients and containers send passes a proxy."""
    cluster = Embedded(folder, environment={"UNDETERRED_ADMIN_PASSWORD": PASSWORD})
    with recording(record, int(cluster.environment["UNDETERRED_PORT"])) as proxy:
        proxy.generation = generation
        cluster.environment["UNDETERRED_CONTAINER_API_URL"] = proxy.url
        with cluster.started(), contextlib.closing(Published(generation, cluster, proxy, record, folder)) as client:
            client.det("user", "login", "admin", stdin=f"{PASSWORD}\n")
            yield client
