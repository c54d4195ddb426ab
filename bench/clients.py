"""What users wait for at the terminal and in a program: starts, imports, a list, a checkpoint; the published ones beside."""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson

from api.auth.authentication import client_hash
from bench.data import PASSWORD, fill
from bench.measure import Figure, repeat
from bench.served import Api, serving
from database.models import Checkpoint, Experiment, Trial, User
from database.session import Database
from database.tasks import create_trial_tasks
from database.types import utc_now
from determined.common.storage import PosixStorage
from determined.experimental import Determined
from determined.experimental.client import DownloadMode
from tests.kit.servers import REPOSITORY, postgres_server

PUBLISHED = REPOSITORY / ".venv-compat-0.38.1" / "bin"  # `make test` makes it
_IMPORT = "import determined.experimental.client"
_UUID = "00000000-0000-4000-8000-00000000c0de"
_FILES, _FILE_MIB = 16, 64


def figures() -> Iterator[Figure]:
    """Starts and imports, then what needs a server."""
    bare = repeat(lambda: _time_of([sys.executable, "-c", "pass"]), 11)
    yield Figure("python -c pass (for comparison)", bare, "s")
    for words in (["--help"], ["experiment", "--help"]):
        theirs = _published(["det", *words])
        ours = repeat(lambda words=words: _time_of([sys.executable, "-m", "cli", *words]), 11)
        yield Figure(f"det {' '.join(words)}", ours, "s", 0.15, theirs)
    ours = repeat(lambda: _time_of([sys.executable, "-c", "import determined.core"]), 11)
    yield Figure("import determined.core", ours, "s", 0.08, _published(["python", "-c", "import determined.core"]))
    ours = repeat(lambda: _time_of([sys.executable, "-c", _IMPORT]), 11)
    yield Figure(_IMPORT, ours, "s", None, _published(["python", "-c", _IMPORT]))
    with postgres_server() as url, tempfile.TemporaryDirectory() as folder:
        fill(url, 0.001, experiments=1000)
        storage = Path(folder, "storage")
        _checkpoint(url, storage)
        with serving(url, UNDETERRED_STORAGE_ROOTS=str(storage)) as api:
            token = _log_in(api)
            yield _list_of_1000(api, token)
            yield from _own_time(api, token)
            yield from _download(api, storage, Path(folder))


def _time_of(command: list[str], environment: Mapping[str, str] | None = None) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **(environment or {})})
    return time.perf_counter() - began


def _published(words: list[str], environment: Mapping[str, str] | None = None) -> str:
    """The median of the published client for the same, in this very run."""
    command = [str(PUBLISHED / words[0]), *words[1:]]
    values = sorted(repeat(lambda: _time_of(command, environment), 5))
    return f"{values[2]:.2f} s"


def _log_in(api: Api) -> str:
    body = {"username": "admin", "password": client_hash(PASSWORD), "isHashed": True}
    return orjson.loads(api.ask("POST", "/api/v1/auth/login", body))["token"]


def _list_of_1000(api: Api, token: str) -> Figure:
    environment = {"DET_MASTER": f"http://127.0.0.1:{api.port}", "DET_USER_TOKEN": token, "DET_USER": "admin"}
    words = ["e", "ls", "-a", "--limit", "1000"]
    ours = repeat(lambda: _time_of([sys.executable, "-m", "cli", *words], environment), 7)
    return Figure("det e ls -a with 1,000 experiments", ours, "s", None, _published(["det", *words], environment))


def _own_time(api: Api, token: str) -> Iterator[Figure]:
    """Processor time of commands that read, beyond that of a Python which does nothing."""
    environment = {"DET_MASTER": f"http://127.0.0.1:{api.port}", "DET_USER_TOKEN": token, "DET_USER": "admin"}
    bare = statistics.median(repeat(lambda: _processor_time_of([sys.executable, "-c", "pass"]), 11))
    for words in (["e", "ls", "--limit", "20"], ["t", "describe", "1"], ["version"]):
        command = [sys.executable, "-m", "cli", *words]
        took = repeat(lambda command=command: _processor_time_of(command, environment), 11)
        note = "processor time, without that of python -c pass"
        yield Figure(f"det {' '.join(words)}: of its own", [1000 * (each - bare) for each in took], "ms", 60, note=note)


def _processor_time_of(command: list[str], environment: Mapping[str, str] | None = None) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _time_of(command, environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _checkpoint(url: str, root: Path) -> None:
    """A checkpoint of 1 GiB in shared_fs storage, and its record."""
    place = PosixStorage(str(root))
    place.begin(_UUID)
    data = os.urandom(_FILE_MIB << 20)
    with place.staging(_UUID) as folder:
        names = [f"part-{number}" for number in range(_FILES)]
        for name in names:
            Path(folder, name).write_bytes(data)
        place.commit(_UUID, place.put(_UUID, folder, names), {}, "download")
    database = Database(url)
    with database.write() as session:
        experiment = Experiment(
            job_id="download", name="download", state="COMPLETED", original_config="", searcher_name="single",
            config={"checkpoint_storage": {"type": "shared_fs", "host_path": str(root)}}, searcher_metric="loss",
            resource_pool="default", owner_id=session.query(User).filter_by(username="admin").one().id, project_id=1,
        )  # fmt: skip
        session.add(experiment)
        session.flush()
        trial = Trial(experiment_id=experiment.id, request_id="r", task_id="download", seed=0, hparams={},
                      state="COMPLETED", run_id=1, summary={})  # fmt: skip
        session.add(trial)
        session.flush()
        create_trial_tasks(session, [trial.id])
        sizes = dict.fromkeys(names, len(data))
        session.add(
            Checkpoint(uuid=_UUID, experiment_id=experiment.id, trial_id=trial.id, task_id="download", allocation_id="",
                       state="COMPLETED", steps_completed=1, resources=sizes, metadata_={"steps_completed": 1},
                       size_bytes=sum(sizes.values()), reported_at=utc_now())
        )  # fmt: skip
    database.close()


def _download(api: Api, storage: Path, folder: Path) -> Iterator[Figure]:
    """1 GiB by the SDK and by `cp`, in turn: the disk has its moods."""
    client = Determined(f"http://127.0.0.1:{api.port}", "admin", PASSWORD)
    copied: list[float] = []
    times: dict[DownloadMode, list[float]] = {DownloadMode.DIRECT: [], DownloadMode.MASTER: []}
    for _ in range(5):
        copied.append(_timed_copy(storage / _UUID, folder / "copy"))
        for mode, took in times.items():
            began = time.perf_counter()
            client.get_checkpoint(_UUID).download(str(folder / "download"), mode)
            took.append(time.perf_counter() - began)
            shutil.rmtree(folder / "download")
    gib = _FILES * _FILE_MIB / 1024
    yield Figure(f"cp -r of a checkpoint of {gib:g} GiB (for comparison)", copied, "s")
    ratios = [cp / download for cp, download in zip(copied, times[DownloadMode.DIRECT], strict=True)]
    yield Figure(
        "speed of Checkpoint.download of it on shared_fs, verified, times that of cp",
        ratios,
        "x",
        0.8,
        more_is_better=True,
    )
    rates = [gib * 1024 / took for took in times[DownloadMode.MASTER]]
    yield Figure("Checkpoint.download of it through the API, verified", rates, "MiB/s", more_is_better=True)


def _timed_copy(source: Path, target: Path) -> float:
    took = _time_of(["cp", "-r", str(source), str(target)])
    shutil.rmtree(target)
    return took
