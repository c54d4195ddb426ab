"""The live view: its picture, its curves, its keys, and all of it in a terminal; and the bar of what takes long."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from rich.console import Console

from cli import progress
from cli.keys import single_keys
from cli.picture import View, picture, rung_line, sparkline
from cli.snapshot import Snapshot
from tests.unit.cli.conftest import Cluster
from tests.unit.cli.test_experiment import experiment, page, trial


def shown(now: Snapshot, view: View | None = None, *, height: int = 24, width: int = 120) -> str:
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False)
    with console.capture() as captured:
        console.print(picture(now, height, view))
    return captured.get()


def test_picture_of_a_search() -> None:
    trials = [
        trial(1, "RUNNING", rung=1, searcherMetricValue=0.3, hparams={"lr": 0.1, "layers": 2}),
        trial(2, "COMPLETED", rung=0, searcherMetricValue=0.9, totalBatchesProcessed=4),
        trial(3, "QUEUED", rung=0, totalBatchesProcessed=0),
    ]
    now = Snapshot(experiment("RUNNING", bestTrialId=1, bestTrialSearcherMetric=0.3), trials)
    text = shown(now, View(curves={1: [3.0, 2.0, 1.0, 0.5], 2: [1.0]}))
    lines = [line.rstrip() for line in text.splitlines()]
    assert re.fullmatch(r"experiment 7  mnist  RUNNING  ━+ +50.0%", lines[0])
    assert lines[1:] == [
        "trials by rung: 0: 2, 1: 1",
        "",
        "trial  state      rung  steps  loss  curve  restarts  hyperparameters",
        "    1  RUNNING       1     10   0.3  █▅▂▁          0  lr=0.1, layers=2",
        "    3  QUEUED        0      0                      0  lr=0.1",
        "    2  COMPLETED     0      4   0.9  ▄             0  lr=0.1",
        "best so far: loss 0.3 in trial 1: lr=0.1, layers=2",
        "l shows a log; q or Ctrl-C stops watching, the experiment goes on",
    ]


def test_picture_says_that_the_cluster_is_away_and_has_no_keys_at_the_end() -> None:
    now = Snapshot(experiment("RUNNING"), [trial()])
    assert "the cluster does not answer; trying again" in shown(now, View(is_away=True))
    assert "Ctrl-C" not in shown(Snapshot(experiment("COMPLETED"), [trial()]))


@pytest.mark.parametrize("height", [16, 20, 40])
@pytest.mark.parametrize("count", [0, 1, 5, 60])
@pytest.mark.parametrize("lines", [None, 0, 3, 200])
def test_picture_fits_the_terminal(height: int, count: int, lines: int | None) -> None:
    trials = [trial(n, "COMPLETED" if n > 2 else "RUNNING", rung=0, searcherMetricValue=n / 10) for n in range(count)]
    now = Snapshot(experiment("RUNNING", bestTrialId=1, bestTrialSearcherMetric=0.1), trials)
    log = None if lines is None else [f"line {n} {'x' * 200}\n" for n in range(lines)]
    text = shown(now, View(log=log, log_of=1), height=height)
    assert len(text.splitlines()) < height, text
    hidden = re.search(r"… and (\d+) more", text)
    rows = len(re.findall(r"^ +\d+  (?:RUNNING|COMPLETED)", text, re.M))
    assert rows + (int(hidden[1]) if hidden else 0) == count
    if lines:
        assert f"line {lines - 1} " in text, "the newest line is there"


def test_long_hyperparameters_take_what_is_left_of_the_width() -> None:
    long = trial(1, "COMPLETED", hparams={f"name{n}": n for n in range(40)})
    text = shown(Snapshot(experiment("RUNNING"), [long]), width=90)
    assert "COMPLETED" in text
    assert "restarts" in text
    assert max(map(len, text.splitlines())) <= 90


def test_rung_line_is_empty_without_rungs() -> None:
    assert rung_line(Snapshot(experiment(), [trial(), trial(4)])) == ""


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], ""),
        ([5.0], "▄"),
        ([2.0, 2.0], "▄▄"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([3.0, float("nan"), 1.0, float("inf")], "█·▁·"),
        ([float("nan")], "·"),
    ],
)
def test_sparkline(values: list[float], expected: str) -> None:
    assert sparkline(values) == expected


def test_sparkline_keeps_its_width_and_the_last_value() -> None:
    curve = sparkline([float(n) for n in range(1000)], 8)
    assert curve == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0] * 999 + [1.0], 8) == "▁▁▁▁▁▁▁█"


def test_keys_come_without_enter_and_the_terminal_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "r") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        before = termios.tcgetattr(terminal)
        with single_keys() as next_key:
            assert next_key(0.01) == ""
            os.write(controller, b"l")
            assert next_key(5.0) == "l"
            assert not termios.tcgetattr(terminal)[3] & termios.ECHO
            assert termios.tcgetattr(terminal)[3] & termios.ISIG, "Ctrl-C stays an interrupt"
        assert termios.tcgetattr(terminal) == before
    os.close(controller)


def test_without_a_terminal_there_are_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("l"))
    with single_keys() as next_key:
        assert next_key(0.001) == ""


def _as_in_a_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job of a shell ignores it; a person's does not


@dataclass
class Terminal:
    """A process in a terminal of its own: what it wrote, and keys for it."""

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict[str, str])
    text: str = ""

    def __post_init__(self) -> None:
        self.controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 110, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", **self.environment}
        environment.pop("NO_COLOR", None) if "NO_COLOR" not in self.environment else None
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cli", *self.words],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=environment,
            start_new_session=True,
            preexec_fn=_as_in_a_terminal,
        )
        os.close(terminal)

    def until(self, wanted: str, timeout_s: float = 30.0) -> None:
        """Read until it has written this since the last call."""
        deadline = time.monotonic() + timeout_s
        start = len(self.text)
        while wanted not in self.text[start:]:
            left = deadline - time.monotonic()
            assert left > 0, f"no {wanted!r} in {self.text[start:]!r}"
            if select.select([self.controller], [], [], left)[0]:
                try:
                    self.text += os.read(self.controller, 1 << 16).decode(errors="replace")
                except OSError:  # it has ended
                    assert wanted in self.text[start:], self.text[start:]

    def press(self, keys: str) -> None:
        os.write(self.controller, keys.encode())

    def end(self) -> int:
        """Its exit code."""
        drain = threading.Thread(target=self._drain, daemon=True)
        drain.start()
        code = self.process.wait(30)
        drain.join(5)
        return code

    def _drain(self) -> None:
        try:
            while data := os.read(self.controller, 1 << 16):
                self.text += data.decode(errors="replace")
        except OSError:
            return  # the terminal is gone with the process

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.controller)


@pytest.fixture
def watched(cluster: Cluster) -> Iterator[Terminal]:
    """`det e follow 7` in a terminal, with two trials that run for ever."""
    best = {"bestTrialId": 3, "bestTrialSearcherMetric": 0.25}
    cluster.routes["GET /api/v1/experiments/7"] = {"experiment": experiment("RUNNING", **best)}
    cluster.routes["GET /api/v1/experiments/7/trials"] = page("trials", trial(3, rung=0), trial(4, rung=1))
    points = [{"batches": n, "values": {"loss": 8 - n}} for n in range(8)]
    cluster.routes["GET /api/v1/trials/time-series"] = {
        "trials": [{"trial": {"id": 3}, "metrics": [{"data": points}]}, {"trial": {"id": 4}, "metrics": []}]
    }
    for number in (3, 4):
        line = json.dumps({"result": {"id": "1", "message": f"words of {number}\n"}}).encode()
        cluster.routes[f"GET /api/v1/trials/{number}/logs"] = line + b"\n"
    terminal = Terminal(["e", "follow", "7"])
    yield terminal
    terminal.close()


def test_live_view_in_a_terminal(cluster: Cluster, watched: Terminal) -> None:
    watched.until("l shows a log")
    assert "█▇▆▅▄▃▂▁" in watched.text
    assert "best so far: loss 0.25 in trial 3" in watched.text
    assert "\x1b[" in watched.text
    watched.press("l")
    watched.until("words of 3")
    watched.press("n")
    watched.until("words of 4")
    watched.press("l")
    watched.until("l shows a log")
    cluster.routes["GET /api/v1/experiments/7"] = {"experiment": experiment("COMPLETED")}
    assert watched.end() == 0
    assert "experiment 7: COMPLETED after 1h02m03s" in watched.text
    assert "\x1b[?25h" in watched.text[-400:], "the cursor is back"


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_detaching_says_so_and_touches_nothing(cluster: Cluster, watched: Terminal, key: str) -> None:
    watched.until("l shows a log")
    watched.press(key)
    assert watched.end() == 130
    assert "stopped watching, the experiment goes on; follow it again with `det experiment follow 7`" in watched.text
    assert "Traceback" not in watched.text
    assert all(name.startswith("GET") for name, _, _ in cluster.requests)


def test_a_refusal_ends_the_live_view(cluster: Cluster, watched: Terminal) -> None:
    watched.until("l shows a log")
    cluster.routes["GET /api/v1/experiments/7"] = 404, {"message": "there is no experiment 7"}
    assert watched.end() == 4
    assert "there is no experiment 7" in watched.text


def test_no_colour_means_plain_lines(cluster: Cluster) -> None:
    cluster.routes["GET /api/v1/experiments/7"] = {"experiment": experiment()}
    cluster.routes["GET /api/v1/experiments/7/trials"] = page("trials", trial(state="COMPLETED"))
    terminal = Terminal(["e", "follow", "7"], {"NO_COLOR": "1"})
    try:
        assert terminal.end() == 0
        assert "experiment 7: COMPLETED" in terminal.text
        assert "\x1b" not in terminal.text
    finally:
        terminal.close()


class _Tty(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


@pytest.mark.parametrize(
    ("reported", "in_bytes", "expected"),
    [((1, 4), False, " 25%"), ((5e6, 1e7), True, "5.0/10.0 MB"), ((11, 10), False, "100%"), ((0, 0), False, "0:00:00")],
)
def test_bar_appears_when_it_takes_long_and_goes(
    monkeypatch: pytest.MonkeyPatch, reported: tuple[float, float], in_bytes: bool, expected: str
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_AFTER_S", 0.02)
    monkeypatch.setattr(progress, "_EVERY_S", 0.01)
    shown_on = _Tty()
    monkeypatch.setattr("sys.stderr", shown_on)
    meter = progress.Meter()
    meter(*reported)
    with progress.progress("getting [x]", meter.at, in_bytes=in_bytes):
        deadline = time.monotonic() + 10
        while expected not in shown_on.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert expected in shown_on.getvalue()
    assert "getting [x]" in shown_on.getvalue()
    assert ("MB" in shown_on.getvalue()) == in_bytes
    assert shown_on.getvalue().endswith("\x1b[2K"), "the line is gone"


@pytest.mark.parametrize(("stderr", "variable"), [(io.StringIO(), None), (_Tty(), "1")])
def test_no_bar_where_nobody_looks(monkeypatch: pytest.MonkeyPatch, stderr: Any, variable: str | None) -> None:
    monkeypatch.setattr(progress, "_AFTER_S", 0.0)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if variable is not None:
        monkeypatch.setenv("NO_COLOR", variable)
    monkeypatch.setattr("sys.stderr", stderr)
    with progress.progress("getting"):
        time.sleep(0.05)
    assert stderr.getvalue() == ""
