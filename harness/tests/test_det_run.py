"""`%det run` in a kernel of a real JupyterLab: what it sends, as whom, and what it refuses."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from .service_runs import TASK
from .test_notebook import Kernel, Notebook
from .test_notebook_code import run, written

if TYPE_CHECKING:
    from conftest import Call, Master

CREATE = "POST /api/v1/experiments"
CELLS = ("import helper\n!pip list\nprint(helper.NAME)", "%det run --name first --config hyperparameters.lr=1e-3")


class Opened:
    """A notebook of a JupyterLab, opened in a browser."""

    def __init__(self, master: Master, root: Path) -> None:
        self.lab, self.folder = Notebook(master, root), root / "work"
        self.lab.env |= {"DET_USER": "ada", "DET_USER_TOKEN": "token-of-the-container"}
        master.answer(f"GET /api/v1/notebooks/{TASK}", lambda call: self.described)
        master.answer("GET /api/v1/workspaces/3/projects", lambda call: {"projects": self.projects})
        master.answer(CREATE, {"experiment": {"id": 12}, "notices": ["a notice"]})
        self.described: dict[str, Any] = {
            "notebook": {"id": TASK, "workspaceId": 1},
            "config": {
                "environment": {
                    "image": {"cpu": "c", "cuda": "g"},
                    "environment_variables": {"cpu": ["A=1"]},
                    "ports": {},
                },
                "resources": {"slots": 2, "resource_pool": "gpus", "shm_size": 4096, "priority": 3},
                "bind_mounts": [{"host_path": "/data", "container_path": "/data"}],
                "idle_timeout": "1h",
            },
        }
        self.projects: list[dict[str, Any]] = []

    def open(self) -> None:
        (self.folder / "helper.py").write_text("NAME = 'helped'\n")
        (self.folder / "left-out.bin").write_text("x")
        (self.folder / ".detignore").write_text("*.bin\n")
        (self.folder / ".ipynb_checkpoints").mkdir()
        (self.folder / ".ipynb_checkpoints" / "train-checkpoint.ipynb").write_text("{}")
        self.path = written(self.folder / "train.ipynb", *CELLS)
        about = {
            "path": str(self.path).lstrip("/"),
            "name": self.path.name,
            "type": "notebook",
            "kernel": {"name": "python3"},
        }
        kernel = self.lab.call("POST", "/api/sessions", about)["kernel"]["id"]
        self.kernel = Kernel(self.lab, kernel, "s1")

    def save(self, *cells: str) -> None:
        written(self.path, *cells)
        # a file system may know seconds only
        os.utime(self.path, (time.time() + 1, time.time() + 1))

    def run(self, code: str) -> str:
        """What a cell prints; its error, if it has one."""
        self.kernel.send(code)
        printed, is_reply, is_idle = "", False, False
        while not (is_reply and is_idle):
            message = json.loads(self.kernel.socket.recv())
            content = message["content"]
            if message["parent_header"].get("msg_type") != "execute_request":
                continue  # the page's own questions to a new kernel
            if message["msg_type"] == "stream":
                printed += content["text"]
            is_reply |= message["msg_type"] == "execute_reply"
            is_idle |= message["msg_type"] == "status" and content["execution_state"] == "idle"
            if message["msg_type"] == "execute_reply":
                self.status = content["status"]
        return printed

    def saved_and_run(self, code: str) -> str:
        self.save("print(1)", code)
        return self.run(code)

    def sent(self) -> tuple[dict[str, Any], dict[str, str], Call]:
        """The newest request: configuration, files, and the whole."""
        call = self.lab.master.of(CREATE)[-1]
        files = {
            each["path"]: base64.b64decode(each["content"] or "").decode() for each in call.body["modelDefinition"]
        }
        return yaml.safe_load(call.body["config"]), files, call


@pytest.fixture(scope="module")
def opened(module_master: Master, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    found = Opened(module_master, tmp_path_factory.mktemp("run"))
    with found.lab.running():
        found.open()
        yield found
        found.kernel.close()


def test_a_notebook_becomes_an_experiment_of_its_owner(opened: Opened) -> None:
    opened.save(*CELLS)
    printed = opened.run(CELLS[1])
    assert "Left out, as only a notebook can run it: !pip list\n" in printed
    assert "warning: a notice\n" in printed
    assert "Created experiment 12 from train.ipynb, as saved" in printed
    assert "det experiment logs -f 12" in printed
    config, files, call = opened.sent()
    assert config == {
        "name": "first",
        "entrypoint": ["python3", "notebook.py"],
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": 2, "resource_pool": "gpus", "shm_size": 4096},
        "environment": {"image": {"cpu": "c", "cuda": "g"}, "environment_variables": {"cpu": ["A=1"]}},
        "bind_mounts": [{"host_path": "/data", "container_path": "/data"}],
        "hyperparameters": {"lr": 0.001},
    }
    assert set(files) == {"helper.py", "train.ipynb", "notebook.py"}
    assert run(f"import sys; sys.path.insert(0, {str(opened.folder)!r})\n" + files["notebook.py"]) == "helped\n"
    assert call.headers["Authorization"] == "Bearer token-of-the-container"
    assert "projectId" not in call.body
    assert not list(opened.folder.glob("notebook.py")), "nothing stays behind"


def test_options_say_what_is_else(opened: Opened) -> None:
    code = "%det run --slots 0 --max-length 10:epochs --config searcher.metric=acc resources.priority=7 name='a b'"
    opened.saved_and_run(code)
    config, _, _ = opened.sent()
    assert config["resources"] == {"slots_per_trial": 0, "shm_size": 4096, "priority": 7}, "not in the pool of GPUs"
    assert config["searcher"] == {"name": "single", "metric": "acc", "max_length": {"epochs": 10}}
    assert config["name"] == "a b"
    assert "--max-length" in opened.run("%det run --help")
    assert opened.status == "ok"


def test_it_goes_into_a_project_of_the_notebooks_workspace(opened: Opened) -> None:
    opened.described["notebook"]["workspaceId"] = 3
    assert "has no project" in opened.saved_and_run("%det run")
    opened.projects = [{"id": 7, "name": "only"}, {"id": 9, "name": "old", "archived": True}]
    opened.saved_and_run("%det run")
    assert opened.sent()[2].body["projectId"] == 7
    opened.projects.append({"id": 8, "name": "second"})
    assert "say the project by --project: one of 'only', 'second'" in opened.saved_and_run("%det run")
    opened.saved_and_run("%det run --project second")
    assert opened.sent()[2].body["projectId"] == 8
    opened.described["notebook"]["workspaceId"] = 1


def test_what_has_run_and_is_not_saved_is_not_left_behind(opened: Opened) -> None:
    count = len(opened.lab.master.of(CREATE))
    opened.save("print(1)", "%det run")
    time.sleep(1.5)
    opened.run("print('edited')")
    assert "cells that have run are not in train.ipynb yet: save it" in opened.run("%det run")
    assert (opened.status, len(opened.lab.master.of(CREATE))) == ("error", count)
    opened.save("print('edited')", "%det run")
    assert "Created experiment 12" in opened.run("%det run")
    assert "Created experiment 12" in opened.run(f"%det run {opened.path}")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("%det", "expected `%det run`, got ''"),
        ("%det experiment list", "expected `%det run`, got 'experiment list'"),
        ("%det run --slots many", "invalid int value: 'many'"),
        ("%det run --slots -1", "--slots: expected a number from 0 on, got -1"),
        ("%det run --max-length long", "--max-length: expected a number, or one with a unit"),
        ("%det run --max-length 3:days", "--max-length: expected a number, or one with a unit"),
        ("%det run --config lr", "--config 'lr': expected key.sub=value"),
        ("%det run --config a..b=1", "--config 'a..b=1': expected key.sub=value"),
        ("%det run --config name.x=1", "--config 'name.x=1': name has no fields"),
        ("%det run --config 'a={'", "its value is no YAML"),
        ("%det run 'x", "can't be read: No closing quotation"),
        ("%det run none.ipynb", "none.ipynb can't be read: No such file or directory"),
        ("%det run helper.py", "helper.py is no notebook of the format 4"),
    ],
)
def test_mistakes_are_one_sentence_and_make_nothing(opened: Opened, code: str, told: str) -> None:
    count = len(opened.lab.master.of(CREATE))
    printed = opened.saved_and_run(code)
    assert told in printed
    assert (printed.count("\n"), opened.status, len(opened.lab.master.of(CREATE))) == (1, "error", count)


def test_files_in_the_way_and_refusals_are_said(opened: Opened) -> None:
    (opened.folder / "notebook.py").write_text("")
    assert "is in the way of the notebook's code: rename it" in opened.saved_and_run("%det run")
    (opened.folder / "notebook.py").unlink()
    opened.lab.master.answer(CREATE, (403, {"message": "you need the role Contributor"}))
    printed = opened.saved_and_run("%det run")
    assert ("you need the role Contributor" in printed, printed.count("\n")) == (True, 1)
    opened.lab.master.answer(CREATE, {"experiment": {"id": 12}})


def test_a_kernel_without_a_notebook_asks_for_its_name(opened: Opened) -> None:
    kernel = opened.kernel
    opened.kernel = Kernel(opened.lab, opened.lab.call("POST", "/api/kernels", {})["id"], "s2")
    assert "name it, as in `%det run train.ipynb`" in opened.run("%det run")
    opened.save("print(1)")
    assert "Created experiment 12" in opened.run(f"%det run {opened.path}")
    opened.kernel.close()
    opened.kernel = kernel


def test_the_users_own_startup_file_comes_too(master: Master, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("mine = 'from my file'\n")
    opened = Opened(master, tmp_path)
    opened.lab.env["PYTHONSTARTUP"] = str(tmp_path / "own.py")
    with opened.lab.running():
        opened.open()
        assert opened.run("print(mine)") == "from my file\n"
        assert "Created experiment 12" in opened.run(f"%det run {opened.path}")
        assert opened.run("print('_load' in dir())") == "False\n"
        opened.kernel.close()
