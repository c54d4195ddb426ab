"""A TensorBoard's container, on folders, S3, GCS and Azure."""

from __future__ import annotations

import json
import os
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from determined.common import storage
from determined.core._tensorboard import _Scalars
from determined.exec import _events
from tests.kit import storages

from .service_runs import READY, TASK, Service

if TYPE_CHECKING:
    from conftest import Master

TAG = "Determined/val_accuracy"


class Board(Service):
    """The process of a TensorBoard's container."""

    def __init__(self, master: Master, root: Path) -> None:
        super().__init__(master, root, "TENSORBOARD")
        self.env["DET_TENSORBOARD_ARGS"] = "[]"
        self.to_close: list[_Scalars] = []
        self.show({"type": "directory", "container_path": str(root / "storage")}, 3, None)

    def show(self, section: dict[str, Any], experiment_id: int, trial_id: int | None) -> None:
        source = {"experiment_id": experiment_id, "trial_id": trial_id, "storage": section, "cluster_id": "c1"}
        self.env["DET_TENSORBOARD_SOURCES"] = json.dumps([source])

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/proxy/{TASK}{path}", timeout=30) as answer:
            return json.loads(answer.read())

    def points(self, run: str) -> list[tuple[int, float]]:
        """Step and value of what it shows of a run."""
        tags = self.get("/data/plugin/scalars/tags")
        if TAG not in tags.get(run, {}):
            return []
        query = urllib.parse.urlencode({"run": run, "tag": TAG})
        return [(step, round(value, 3)) for _, step, value in self.get(f"/data/plugin/scalars/scalars?{query}")]

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 40) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.2)


class Run:
    """A trial that writes events and has them copied to its storage, as the harness does it."""

    def __init__(self, board: Board, section: dict[str, Any], trial_id: int) -> None:
        from determined.core._tensorboard import TensorboardFiles

        below = ("c1", "tensorboard", "experiment", "3", "trial", str(trial_id))
        self.files = TensorboardFiles(str(board.root / f"written-{trial_id}"), storage.build(section), below)
        self.scalars = _Scalars(self.files)
        board.to_close.append(self.scalars)

    def write(self, step: int, value: float) -> None:
        self.scalars.add("validation", step, 1e9 + step, {"accuracy": value})
        self.files.upload_changed({})


@pytest.fixture
def board(master: Master, tmp_path: Path) -> Iterator[Board]:
    board = Board(master, tmp_path)
    yield board
    for scalars in board.to_close:
        scalars.close()


def test_scalars_of_a_folder_are_shown_as_they_come(board: Board) -> None:
    section = {"type": "directory", "container_path": str(board.root / "storage")}
    first = Run(board, section, 7)
    first.write(1, 0.5)
    with board.running() as process:
        board.wait_for(lambda: board.points("experiment/3/trial/7") == [(1, 0.5)])
        first.write(2, 0.75)
        second = Run(board, section, 8)
        second.write(1, 0.25)
        board.wait_for(lambda: board.points("experiment/3/trial/7") == [(1, 0.5), (2, 0.75)])
        board.wait_for(lambda: board.points("experiment/3/trial/8") == [(1, 0.25)])
        assert len(board.master.of(READY)) == 1
        process.terminate()
        assert process.wait(30) in (0, 143)


def test_scalars_of_an_s3_are_fetched_as_they_come_and_its_keys_stay_inside(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    with storages.s3_section() as section:
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        run, other = Run(board, section, 7), Run(board, section, 8)
        run.write(1, 0.5)
        other.write(1, 0.25)
        board.show(section, 3, 7)
        board.env |= {"AWS_DEFAULT_REGION": "us-east-1", "DET_TENSORBOARD_ARGS": '["--samples_per_plugin=scalars=50"]'}
        with board.running() as process:
            board.wait_for(lambda: board.points("experiment/3/trial/7") == [(1, 0.5)])
            run.write(2, 0.75)
            board.wait_for(lambda: board.points("experiment/3/trial/7") == [(1, 0.5), (2, 0.75)])
            assert list(board.get("/data/plugin/scalars/tags")) == ["experiment/3/trial/7"], (
                "of the other trial nothing"
            )
            ours = psutil.Process(process.pid)
            lines = [" ".join(each.cmdline()) for each in (ours, *ours.children(recursive=True))]
            assert any("_board" in line for line in lines)
            assert not [line for line in lines if "testing-secret" in line]
            assert not [each for each in ours.children() if "testing-secret" in str(each.environ())]
        assert "testing-secret" not in board.log.read_text()


@pytest.mark.parametrize("store", [storages.gcs_section, storages.azure_section], ids=["gcs", "azure"])
def test_scalars_of_other_stores_are_fetched_as_they_come(
    board: Board, store: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with store() as (section, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        run = Run(board, section, 7)
        run.write(1, 0.5)
        board.show(section, 3, 7)
        board.env |= environment
        with board.running():
            board.wait_for(lambda: board.points("experiment/3/trial/7") == [(1, 0.5)])
            run.write(2, 0.75)
            board.wait_for(lambda: board.points("experiment/3/trial/7") == [(1, 0.5), (2, 0.75)])
        assert storages.AZURE_KEY not in board.log.read_text()


def test_board_does_not_import_tensorflow(board: Board) -> None:
    """Its readers would show nothing new of a file that was replaced."""
    (board.root / "packages" / "tensorflow").mkdir(parents=True)
    (board.root / "packages" / "tensorflow" / "__init__.py").write_text("print('imported', flush=True)")
    board.env["PYTHONPATH"] = str(board.root / "packages")
    section = {"type": "directory", "container_path": str(board.root / "storage")}
    Run(board, section, 7).write(1, 0.5)
    with board.running():
        board.wait_for(lambda: board.points("experiment/3/trial/7") == [(1, 0.5)])
        assert "imported" not in board.log.read_text()


def test_an_empty_board_is_shown_after_a_while(board: Board) -> None:
    began = time.monotonic()
    with board.running():
        assert 7 < time.monotonic() - began < 40
        assert board.get("/data/plugin/scalars/tags") == {}


def test_a_storage_that_does_not_answer_is_said_once_and_the_board_is_empty(board: Board) -> None:
    board.show({"type": "s3", "bucket": "none", "endpoint_url": "http://127.0.0.1:1"} | KEYS, 3, None)
    board.env["AWS_MAX_ATTEMPTS"] = "1"
    with board.running():
        board.wait_for(lambda: "the files of experiment/3 can't be listed" in board.log.read_text(), 60)
        assert "testing-secret" not in board.log.read_text()


KEYS = {"access_key": "testing-key", "secret_key": "testing-secret"}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"TENSORBOARD_PORT": "-1"}, "TENSORBOARD_PORT is '-1', but must be a port from 1 to 65535"),
        ({"DET_TENSORBOARD_ARGS": '["--logdir=/"]'}, "has '--logdir=/', which is the cluster's to choose"),
        ({"DET_TENSORBOARD_ARGS": '["--log=/"]'}, "has '--log=/', which is the cluster's to choose"),
        ({"DET_TENSORBOARD_ARGS": '["--bind_all"]'}, "has '--bind_all', which is the cluster's to choose"),
        ({"DET_TENSORBOARD_ARGS": '["--flagfile=x"]'}, "has '--flagfile=x', which is the cluster's to choose"),
        ({"DET_TENSORBOARD_ARGS": '["/etc"]'}, "has '/etc', but must have --name or --name=value"),
        ({"DET_TENSORBOARD_ARGS": "[3]"}, "has '3', but must have --name or --name=value"),
        ({"DET_TENSORBOARD_ARGS": "{}"}, "must be a list of at most 64 texts"),
        ({"DET_TENSORBOARD_SOURCES": "[]"}, "must be a JSON list of 1 to 10000 sources"),
        ({"DET_TENSORBOARD_SOURCES": "{"}, "DET_TENSORBOARD_SOURCES is not valid JSON"),
        ({"DET_TENSORBOARD_SOURCES": '[{"storage": {"secret": 1}}]'}, "a source in the environment variable"),
        (
            {"DET_TENSORBOARD_SOURCES": '[{"experiment_id": 1, "cluster_id": "..", "storage": {"type": "hdfs"}}]'},
            "storage type 'hdfs' is not available in this release",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(board: Board, env: dict[str, str], message: str) -> None:
    board.env |= env
    code, err = board.run()
    assert (code, len(err.splitlines())) == (1, 1), err
    assert message in err


def test_a_taken_port_is_said(board: Board) -> None:
    with socket.create_server(("127.0.0.1", board.port)):
        code, err = board.run()
    assert (code, len(err.splitlines())) == (1, 1), err
    assert f"TENSORBOARD_PORT is {board.port}, but this container can't listen there: Address already in use" in err


def test_an_image_without_tensorboard_says_what_to_install(board: Board, trial_python: str) -> None:
    code, err = board.run(trial_python)
    assert (code, len(err.splitlines())) == (1, 1)
    assert "TensorBoard is not installed" in err
    assert "`pip install undeterred-harness[tensorboard]`" in err


class _Bucket(storage.PosixStorage):
    """Files by name, which are counted as they are read."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.files: dict[str, bytes] = {}
        self.read: list[tuple[str, int]] = []

    def list_tensorboard(self, relative: str) -> dict[str, int]:
        return {name: len(content) for name, content in self.files.items()}

    def read_tensorboard(self, relative: str, offset: int = 0) -> Any:
        name = relative.split("/", 4)[4]
        self.read.append((name, offset))
        yield self.files[name][offset:] + b"written meanwhile"


def _copies(folder: Path, bucket: _Bucket) -> _events.Events:
    events = _events.Events(str(folder), [])
    events._remote.append(_events.Source(bucket, "c1", 3, None))
    return events


def test_only_what_is_new_is_fetched(tmp_path: Path) -> None:
    bucket = _Bucket()
    bucket.files = {"events.out.tfevents.1": b"one", "trace.json": b"{}", "../evil": b"x", "/abs": b"x", "a//b": b"x"}
    events = _copies(tmp_path, bucket)
    with ThreadPoolExecutor(2) as pool:
        assert events.refresh(pool)
        assert not events.refresh(pool)
        bucket.files |= {"events.out.tfevents.1": b"one two", "trace.json": b"{ }"}
        assert events.refresh(pool)
    assert sorted(bucket.read) == [
        ("events.out.tfevents.1", 0), ("events.out.tfevents.1", 3), ("trace.json", 0), ("trace.json", 0),
    ]  # fmt: skip
    here = tmp_path / "experiment" / "3"
    assert {path.name: path.read_bytes() for path in here.iterdir()} == {
        "events.out.tfevents.1": b"one two",
        "trace.json": b"{ }",
    }
    assert os.listdir(tmp_path) == ["experiment"]


def test_what_has_no_room_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_events, "MOST_FILES", 2)
    monkeypatch.setattr(_events, "MOST_FILE_BYTES", 10)
    monkeypatch.setattr(_events, "MOST_BYTES", 15)
    bucket = _Bucket()
    bucket.files = {"large": b"x" * 11, "a": b"x" * 9, "b": b"x" * 9, "c": b"", "d": b""}
    events = _copies(tmp_path, bucket)
    with ThreadPoolExecutor(1) as pool:
        events.refresh(pool)
        events.refresh(pool)
    assert sorted(os.listdir(tmp_path / "experiment" / "3")) == ["a", "c"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3, "each once"
    assert "large has 11 bytes, and is left out: 10 are the most" in lines[0]
    assert "not all files have room here: 15 bytes are the most" in lines[1]
    assert "there are more than 2 files" in lines[2]
