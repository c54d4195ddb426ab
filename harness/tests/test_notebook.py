"""A notebook's container: JupyterLab, as the proxy reaches it."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from activities.launchers import entry
from determined.exec._idle import Activity

from .service_runs import READY, TASK, Service

if TYPE_CHECKING:
    from conftest import Master

TOKEN = "notebook-secret"
REPORT = f"PUT /api/v1/notebooks/{TASK}/report_idle"


class Notebook(Service):
    """The process of a notebook's container."""

    def __init__(self, master: Master, root: Path) -> None:
        super().__init__(master, root, "NOTEBOOK")
        self.env |= {"DET_NOTEBOOK_TOKEN": TOKEN, "NOTEBOOK_IDLE_TYPE": "kernels_or_terminals"}
        master.answer(REPORT, {})
        self.base = f"http://127.0.0.1:{self.port}/proxy/{TASK}"

    def call(self, method: str, path: str, body: Any = None, token: str = TOKEN) -> Any:
        request = urllib.request.Request(
            f"{self.base}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {token}"} if token else {},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def reports(self) -> list[bool]:
        return [call.body["idle"] for call in self.master.of(REPORT)]


@pytest.fixture
def notebook(master: Master, tmp_path: Path) -> Notebook:
    return Notebook(master, tmp_path)


class Kernel:
    """A browser's connection to a kernel."""

    def __init__(self, notebook: Notebook, kernel_id: str, session: str) -> None:
        from websocket import create_connection

        self.session = session
        url = f"{notebook.base}/api/kernels/{kernel_id}/channels?session_id={session}&token={TOKEN}"
        self.socket = create_connection(url.replace("http://", "ws://"), timeout=30)

    def send(self, code: str) -> None:
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        header = {
            "msg_id": uuid.uuid4().hex,
            "username": "u",
            "session": self.session,
            "msg_type": "execute_request",
            "version": "5.3",
        }
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        self.socket.send(json.dumps(message))

    def read_until(self, text: str) -> str:
        printed = ""
        while text not in printed:
            message = json.loads(self.socket.recv())
            assert message["msg_type"] != "error", message
            if message["msg_type"] == "stream":
                printed += message["content"]["text"]
        return printed

    def close(self) -> None:
        self.socket.close()


def test_kernel_outlives_its_browser_and_its_output_is_kept(notebook: Notebook) -> None:
    with notebook.running() as process:
        kernel_id = notebook.call("POST", "/api/kernels", {})["id"]
        browser = Kernel(notebook, kernel_id, "s1")
        browser.send("import os, time\nx = 6 * 7\nprint('x is', x, os.getcwd(), os.environ['SHELL'])")
        assert "x is 42" in browser.read_until("/bin/")
        browser.send("print('begins', flush=True)\nfor i in range(4):\n  time.sleep(0.5); print('tick', i, flush=True)")
        browser.read_until("begins")
        browser.close()
        time.sleep(3)
        browser = Kernel(notebook, kernel_id, "s1")
        printed = browser.read_until("tick 3\n")
        assert all(f"tick {i}\n" in printed for i in range(4)), "what was printed while nobody was there"
        browser.send("print('still', x)")
        assert "still 42" in browser.read_until("still")
        browser.close()
        assert "JupyterLab" in _page(notebook)
        assert notebook.call("POST", "/api/terminals", {})["name"] == "1"
        work = f"{notebook.root}/work".lstrip("/")
        assert json.dumps(work)[1:-1] in _page(notebook), "the browser begins in the folder of the task"
        for token in ("", "wrong"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                notebook.call("GET", "/api/kernels", token=token)
            refused.value.close()
            assert refused.value.code in (401, 403)
        ours = psutil.Process(process.pid)
        lines = [" ".join(each.cmdline()) for each in (ours, *ours.children(recursive=True))]
        assert not [line for line in lines if TOKEN in line]
        config = notebook.root / "run" / "jupyter" / "config.json"
        assert config.stat().st_mode & 0o777 == 0o600
        (call,) = notebook.master.of(READY)
        assert call.headers["Grpc-Metadata-x-allocation-token"] == "Bearer secret-token"
        process.terminate()
        assert process.wait(30) == 0, "Jupyter ended in order"
        log = notebook.log.read_text()
        assert TOKEN not in log
        assert "Traceback" not in log
        assert not list(notebook.root.glob(".local/share/jupyter/runtime/*")), "secrets stay in the container's folder"


def _page(notebook: Notebook) -> str:
    """What JupyterLab's page receives."""
    with urllib.request.urlopen(f"{notebook.base}/lab?token={TOKEN}", timeout=30) as page:
        return page.read().decode()


def test_notebook_runs_in_a_layer_over_its_interpreter(notebook: Notebook) -> None:
    """As in a container that is a plain process, where what the user installs goes into a layer."""
    layer = notebook.root / "layer"
    with notebook.running(sys.executable, "-c", Path(entry.__file__).read_text(), str(layer)):
        assert "JupyterLab" in _page(notebook)
        assert notebook.call("POST", "/api/terminals", {})["name"] == "1"
        kernel = Kernel(notebook, notebook.call("POST", "/api/kernels", {})["id"], "s1")
        kernel.send("import sys; print(sys.executable, 'is it')")
        assert kernel.read_until("is it").startswith(str(layer / "bin" / "python"))
        kernel.close()


def test_startup_hooks_come_before(notebook: Notebook) -> None:
    notebook.pack({"startup-hook.sh": "export FROM_HOOK=hooked\n", "data.txt": "here"})
    with notebook.running():
        kernel = Kernel(notebook, notebook.call("POST", "/api/kernels", {})["id"], "s1")
        kernel.send("import os; print(os.environ['FROM_HOOK'], open('data.txt').read(), 'end')")
        assert kernel.read_until("end") == "hooked here end\n"
        kernel.close()


def test_master_is_told_whether_it_is_idle(notebook: Notebook) -> None:
    notebook.env["DET_IDLE_TIMEOUT_S"] = "4"
    with notebook.running():
        notebook.master.wait_for(lambda: notebook.reports()[-1:] == [True])
        assert notebook.master.of(REPORT)[0].body["notebookId"] == TASK
        kernel_id = notebook.call("POST", "/api/kernels", {})["id"]
        notebook.master.wait_for(lambda: notebook.reports()[-1] is False)
        notebook.call("DELETE", f"/api/kernels/{kernel_id}")
        notebook.master.wait_for(lambda: notebook.reports()[-3:] == [True] * 3)
        notebook.master.answer(REPORT, (500, {"message": "broken"}))
        count = len(notebook.reports())
        notebook.master.wait_for(lambda: len(notebook.reports()) > count + 2)
        assert notebook.log.read_text().count("the master can't learn whether this notebook is idle") == 1


def test_rules_of_idleness() -> None:
    quiet = {"connections": 0, "execution_state": "idle", "last_activity": "2026-01-01T00:00:00Z"}
    open_ = {**quiet, "connections": 1}
    busy = {**quiet, "execution_state": "busy"}
    later = {**quiet, "last_activity": "2026-01-01T00:01:00Z"}
    first = Activity("kernels_or_terminals")
    assert first.is_idle([], [], [])
    assert not first.is_idle([quiet], [], [])
    assert not first.is_idle([], [quiet], [])
    assert not Activity("nonsense").is_idle([], [], [quiet])
    second = Activity("kernel_connections")
    assert second.is_idle([quiet, quiet], [quiet], [quiet])
    assert not second.is_idle([quiet, open_], [], [])
    third = Activity("activity")
    looks = [[quiet], [quiet], [busy], [quiet], [quiet, later], [quiet, later], []]
    assert [third.is_idle(kernels, [], []) for kernels in looks] == [False, True, False, True, False, True, False]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"NOTEBOOK_PORT": "x"}, "NOTEBOOK_PORT is 'x', but must be a port from 1 to 65535"),
        ({"NOTEBOOK_PORT": "70000"}, "NOTEBOOK_PORT is '70000', but must be a port from 1 to 65535"),
        ({"DET_NOTEBOOK_TOKEN": ""}, "the environment variable DET_NOTEBOOK_TOKEN is not set"),
        ({"DET_IDLE_TIMEOUT_S": "soon"}, "DET_IDLE_TIMEOUT_S is 'soon', but must be a number of seconds"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(notebook: Notebook, env: dict[str, str], message: str) -> None:
    notebook.env.update(env)
    code, err = notebook.run()
    assert (code, len(err.splitlines())) == (1, 1), err
    assert message in err


def test_a_taken_port_is_said(notebook: Notebook) -> None:
    with socket.create_server(("127.0.0.1", notebook.port)):
        code, err = notebook.run()
    assert (code, len(err.splitlines())) == (1, 1), err
    assert f"NOTEBOOK_PORT is {notebook.port}, but this container can't listen there: Address already in use" in err


def test_an_image_without_jupyter_says_what_to_install(notebook: Notebook, trial_python: str) -> None:
    code, err = notebook.run(trial_python)
    assert (code, len(err.splitlines())) == (1, 1)
    assert "JupyterLab is not installed" in err
    assert "`pip install undeterred-harness[notebook]`" in err


def test_readiness_is_told_again_until_the_master_takes_it(notebook: Notebook) -> None:
    notebook.master.stop()
    timer = threading.Timer(6, notebook.master.start)
    timer.start()
    with notebook.running():
        assert len(notebook.master.of(READY)) == 1
    timer.join()
