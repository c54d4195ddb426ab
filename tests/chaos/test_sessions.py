"""kill -9 of every part of a cluster while a notebook or a shell is open: it goes on, and what it knew is still there."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from tests.kit.embedded import PARTS, Embedded
from tests.kit.notebooks import Notebook, login, started
from tests.kit.patience import PATIENCE
from tests.kit.windows import Window

#: Of a session that a user sees broken and whose page connects again by itself.
RECONNECTED_WITHIN_S = 2.0 * PATIENCE


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    with Embedded(tmp_path, slots=1).started() as cluster:
        yield cluster


@pytest.mark.timeout(300)
def test_a_kernel_outlives_every_part_of_the_cluster(embedded: Embedded) -> None:
    notebook = Notebook(embedded, started(embedded))
    notebook.kernel = notebook.call("POST", "/kernels", json={"name": "python3"})["id"]
    socket = notebook.connected()
    assert notebook.asked(socket, "import os; known = 41; print(os.getpid())").strip().isdigit()
    pid = notebook.asked(socket, "print(os.getpid())")
    for part in PARTS:
        # it prints while nobody is connected
        counting = notebook.send(
            socket, "import time\nfor n in range(100): print('line', n, flush=True); time.sleep(0.02)"
        )
        text = notebook.output(
            socket, counting, "line 0\n"
        )  # it runs: what has not reached the kernel dies with the API
        os.kill(embedded.pid(part), signal.SIGKILL)
        embedded.up()
        if part == "api":
            socket, took = notebook.reconnected()
            assert took < RECONNECTED_WITHIN_S
        text += notebook.output(socket, counting, "line 99\n")
        if part != "api":  # what JupyterLab had sent already is lost with the API, and stands in the page
            assert [line for line in text.splitlines() if line] == [f"line {n}" for n in range(100)]
        assert notebook.asked(socket, "print(known + 1, os.getpid())") == f"42 {pid}"
    socket.close()


def terminal(address: str, headers: dict[str, str]) -> tuple[str, str]:
    """What a shell in a terminal knows, and its process id."""
    with connect(address, additional_headers=headers, open_timeout=5) as socket:
        socket.send(json.dumps(["stdin", 'echo "<<${known}:$$>>"\r']))
        text = ""
        while (found := re.search(r"<<(\w*):(\d+)>>", text)) is None:
            kind, *content = json.loads(socket.recv(timeout=20))
            text += content[0] if kind == "stdout" else ""
        return found[1], found[2]


def told(address: str, headers: dict[str, str], name: str) -> None:
    """Have a shell know something."""
    with connect(address, additional_headers=headers) as socket:
        socket.send(json.dumps(["stdin", f"known=known{name}\r"]))


@pytest.mark.timeout(300)
def test_twenty_terminals_are_there_after_a_restart_of_everything(embedded: Embedded) -> None:
    notebook = Notebook(embedded, started(embedded))
    names = [notebook.call("POST", "/terminals", json={})["name"] for _ in range(20)]
    base = f"ws{notebook.master[4:]}{notebook.path.removesuffix('/api')}/terminals/websocket"
    for name in names:
        told(f"{base}/{name}", notebook.headers, name)
    before = {name: terminal(f"{base}/{name}", notebook.headers) for name in names}
    assert {known for known, _ in before.values()} == {f"known{name}" for name in names}
    for part in PARTS:
        os.kill(embedded.pid(part), signal.SIGKILL)
    embedded.up()
    began, after = time.monotonic(), dict[str, tuple[str, str]]()
    while len(after) < len(names):
        try:
            for name in names[len(after) :]:
                after[name] = terminal(f"{base}/{name}", notebook.headers)
        except (OSError, WebSocketException):
            assert after or time.monotonic() < began + RECONNECTED_WITHIN_S, "the terminals are not reached again"
            time.sleep(0.05)
    assert after == before


def window_again(address: str, headers: dict[str, str], before: Window) -> tuple[Window, float]:
    """Attached once more where another window ended, and how long it took from now, s."""
    began = time.monotonic()
    while True:
        try:
            socket = connect(address + before.where, additional_headers=headers, open_timeout=5)
            return Window(socket), time.monotonic() - began
        except (OSError, WebSocketException):
            assert time.monotonic() < began + 30 * PATIENCE, "the terminal is not reached again"
            time.sleep(0.05)


@pytest.mark.timeout(300)
def test_a_shells_terminal_loses_no_line_to_the_death_of_any_part(embedded: Embedded) -> None:
    master = embedded.environment["DET_MASTER"]
    address, headers = f"ws{master[4:]}/proxy/{started(embedded, 'shell')}:terminal/attach", login(master)
    window = Window(connect(address, additional_headers=headers))
    # a line ends the loop, as bash loses a Ctrl-C that comes in the moment in which a `sleep` has ended
    window.type("stty -echo; known=41; n=0; until read -t 0.01 -r; do echo line $n.; n=$((n+1)); done\n")
    output = ""
    for part in PARTS:
        window.read(r"line \d+\.\r\n")
        os.kill(embedded.pid(part), signal.SIGKILL)
        embedded.up()
        if part == "api":
            output += window.output.decode()
            window, took = window_again(address, headers, window)
            assert took < RECONNECTED_WITHIN_S
        shown = len(window.output)
        while len(window.output) < shown + 40 * len("line 0.\r\n"):  # it goes on after this death, too
            window.take()
    window.type("\n")
    window.type("echo known is $((known + 1))\n")
    output += window.read(r"known is 42\r\n")
    numbers = [int(number) for number in re.findall(r"line (\d+)\.\r\n", output)]
    assert len(numbers) > 100
    assert numbers == list(range(len(numbers)))
