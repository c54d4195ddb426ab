"""The terminals of a shell: what their windows see, whoever comes and goes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import connect

from determined.exec import _terminals, terminal
from determined.exec._scrollback import Scrollback
from tests.kit.servers import free_port
from tests.kit.windows import Window, closed

from .service_runs import TASK
from .test_shell import Shell

if TYPE_CHECKING:
    from conftest import Master

TOKEN = "terminal-secret"
VENDOR = Path(_terminals.__file__).parent / "terminal_page" / "vendor"


class Terminals:
    """The terminals of a shell's container."""

    def __init__(self, master: Master, root: Path) -> None:
        self.shell = Shell(master, root)
        self.port = free_port()
        self.shell.env |= {"TERMINAL_PORT": str(self.port), "DET_TERMINAL_TOKEN": TOKEN, "OF_THE_CONTAINER": "a 'b'"}
        self.address = f"127.0.0.1:{self.port}/proxy/{TASK}:terminal"

    def get(self, path: str, token: str = TOKEN) -> tuple[int, dict[str, str], bytes]:
        request = urllib.request.Request(f"http://{self.address}{path}", headers={"Authorization": f"token {token}"})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    def window(self, query: str = "", **headers: str) -> Window:
        sent = {"Authorization": f"token {TOKEN}", **headers}
        return Window(connect(f"ws://{self.address}/attach{query}", additional_headers=sent, compression=None))

    def refused(self, query: str) -> int:
        """The code by which a window is closed that can't be."""
        with connect(
            f"ws://{self.address}/attach{query}", additional_headers={"Authorization": f"token {TOKEN}"}
        ) as it:
            return closed(it)


@pytest.fixture(scope="module")
def terminals(module_master: Master, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminals]:
    found = Terminals(module_master, tmp_path_factory.mktemp("terminals"))
    with found.shell.running():
        yield found


def test_a_session_is_what_ssh_gives(terminals: Terminals) -> None:
    window = terminals.window("?name=session&columns=100&rows=30")
    window.type('stty -echo; echo "[$OF_THE_CONTAINER|$PWD|$TERM|$DET_TASK_ID|$(stty size)|$DET_TERMINAL_TOKEN]"\n')
    assert f"[a 'b'|{terminals.shell.root}/work|xterm-256color|{TASK}|30 100|]" in window.read(r"\|\]\r\n")
    assert TOKEN not in terminals.shell.log.read_text()
    window.type("ls /proc/self/fd | wc -w; echo 'gr\u00fc\u00dfe'; exit 7\n")
    assert re.search(r"\b4\r\n", window.read("gr\u00fc\u00dfe\r\n")), "no other terminal is open in it"
    assert window.until(kind="ended")["code"] == 7
    assert window.closed() == 1000


def test_output_goes_on_without_windows_and_is_neither_lost_nor_repeated(terminals: Terminals) -> None:
    first = terminals.window("?name=goes-on")
    first.type("stty -echo; known=41; for n in $(seq 600); do echo line $n; sleep 0.002; done\n")
    first.read("line 100\r\n")
    first.socket.socket.close()  # as a laptop that falls asleep
    time.sleep(1)
    second = terminals.window(first.where + "&name=goes-on")
    second.read("line 600\r\n")
    lines = re.findall(rb"line (\d+)\r\n", bytes(first.output + second.output))
    assert [int(each) for each in lines] == list(range(1, 601))
    second.type("echo $((known + 1))\n")
    second.read(r"\b42\r\n")
    second.close()
    again = terminals.window("?name=goes-on")
    assert again.hello["epoch"] == first.hello["epoch"]
    again.read("line 1\r\n.*line 600\r\n.*42\r\n")
    again.close()


def test_two_windows_see_the_same_and_both_type(terminals: Terminals) -> None:
    left = terminals.window("?name=shared&columns=80&rows=24")
    left.until(kind="size", columns=80, rows=24, leads=True)
    right = terminals.window("?name=shared&columns=120&rows=40")
    left.until(kind="size", columns=120, rows=40, leads=False)
    right.type("stty -echo; echo from $((1 + 1)) right\n")
    for window in (left, right):
        window.read("from 2 right\r\n")
    left.type("echo from $((2 + 1)) left; stty size\n")
    for window in (left, right):
        window.read("from 3 left\r\n24 80\r\n")
    right.until(kind="size", columns=80, leads=False)
    left.say(kind="size", columns=90, rows=25)
    right.until(kind="size", columns=90, rows=25)
    left.close()
    right.until(kind="size", columns=120, leads=True)
    right.close()


def test_old_output_comes_in_the_sizes_that_it_was_written_for(terminals: Terminals) -> None:
    window = terminals.window("?name=sizes&columns=50&rows=10")
    window.type("stty -echo; echo narrow $((0 + 1))\n")
    window.read("narrow 1\r\n")
    window.say(kind="size", columns=150, rows=10)
    window.type("echo wide $((0 + 1))\n")
    window.read("wide 1\r\n")
    window.close()
    again = terminals.window("?name=sizes&columns=100&rows=10")
    again.until(kind="size", columns=50)
    assert "narrow" not in again.read("")
    again.read("narrow 1\r\n")
    assert "wide" not in again.output.decode()
    again.until(kind="size", columns=150)
    again.read("wide 1\r\n")
    again.until(kind="size", columns=100)
    again.close()


def test_a_window_that_keeps_up_gets_all_of_a_flood(terminals: Terminals) -> None:
    window = terminals.window("?name=flood")
    window.type("stty -echo -onlcr; seq 2000000 > numbers; sha256sum numbers; cat numbers; echo the end $((0 + 1))\n")
    window.read("[0-9a-f]{64}  numbers\n")
    while not window.output.endswith(b"the end 1\n") and b"the end 1\n" not in window.output[-200:]:
        window.take()
    assert not [each for each in window.told if each["kind"] == "lost"]
    text = bytes(window.output)
    begin = text.index(b"  numbers\n") + len(b"  numbers\n")
    digest = hashlib.sha256(text[begin : text.rindex(b"the end 1")]).hexdigest()
    assert digest.encode() in text[:begin]
    window.close()


def test_a_window_that_has_stopped_holds_nothing_up_and_is_told_what_it_missed(terminals: Terminals) -> None:
    window = terminals.window("?name=stopped")
    window.type("stty -echo -onlcr; seq 1000000; echo done > done; echo the end $((0 + 1))\n")
    done, deadline = terminals.shell.root / "work" / "done", time.monotonic() + 30
    while not done.exists():
        assert time.monotonic() < deadline, "the stopped window blocks the program"
        time.sleep(0.1)
    window.read("the end 1\n")
    lost = window.until(kind="lost")
    assert lost["bytes"] > 1_000_000
    assert lost["from"] + _terminals.KEPT <= window.offset + 200
    window.close()


def test_a_program_without_windows_is_not_held_up(terminals: Terminals) -> None:
    terminals.window("?name=alone").close()
    window = terminals.window("?name=alone")
    window.type("seq 3000000; echo done > alone\n")
    window.close()
    deadline = time.monotonic() + 30
    while not (terminals.shell.root / "work" / "alone").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_end_is_told_with_its_code_and_a_new_one_is_started(terminals: Terminals) -> None:
    window = terminals.window("?name=ends")
    window.type("sleep 1000 & kill -9 $$\n")
    assert window.until(kind="ended")["code"] == 137
    assert window.closed() == 1000
    known = terminals.window(f"{window.where}&name=ends")
    assert known.until(kind="ended")["code"] == 137
    fresh = terminals.window("?name=ends")
    assert fresh.hello["epoch"] != window.hello["epoch"]
    fresh.type("exit\n")
    fresh.until(kind="ended", code=0)


def test_what_is_pasted_arrives_whole(terminals: Terminals) -> None:
    window = terminals.window("?name=paste")
    window.type("stty raw -echo; echo ready $((0 + 1)); head -c 1000000 | sha256sum; stty sane\n")
    window.read("ready 1")
    data = bytes(range(256)) * 4000
    for at in range(0, 1_000_000, 100_000):
        window.socket.send(data[at : at + 100_000])
    window.read(hashlib.sha256(data[:1_000_000]).hexdigest())
    window.close()


@pytest.mark.parametrize(
    "query",
    ["?name=../x", "?name=-", "?name=" + "a" * 33, "?name=A", "?columns=0", "?rows=501", "?columns=1001", "?rows=x",
     "?columns=-1", "?from=" + "9" * 20, "?from=1e3"],
)  # fmt: skip
def test_windows_that_can_not_be_are_refused(terminals: Terminals, query: str) -> None:
    assert terminals.refused(query) == 1008


@pytest.mark.parametrize(
    "message",
    ["", "x", "[]", "{}", '{"kind": "size", "columns": 10}', '{"kind": "size", "columns": 80, "rows": 1e9}',
     '{"kind": "size", "columns": true, "rows": 3}', '{"kind": "shown", "offset": 99999999}', '{"kind": "shown"}',
     "[" * 100_000],
)  # fmt: skip
def test_a_window_that_breaks_the_rules_is_closed(terminals: Terminals, message: str) -> None:
    window = terminals.window()
    window.socket.send(message)
    assert window.closed() == 1008


def test_a_message_that_is_too_large_closes_its_window_only(terminals: Terminals) -> None:
    other, window = terminals.window("?name=shared"), terminals.window("?name=shared")
    window.socket.send(bytes(200_000))
    assert window.closed() == 1009
    other.say(kind="there")
    other.until(kind="beat")
    other.close()


def test_offsets_of_another_program_mean_nothing(terminals: Terminals) -> None:
    window = terminals.window("?epoch=0123456789abcdef&from=1000000")
    assert window.hello["from"] == 0
    where = f"?epoch={window.hello['epoch']}&from={10**14}"
    window.close()
    assert terminals.refused(where) == 1008


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_no_other_page_opens_a_terminal(terminals: Terminals, origin: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        terminals.window(Origin=origin)
    assert refused.value.response.status_code == 403
    terminals.window(Origin=f"http://127.0.0.1:{terminals.port}").close()


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", "\u00e4"])
def test_nobody_of_its_host_gets_in_without_the_token(terminals: Terminals, token: str) -> None:
    for path in ("/", "/terminals", "/attach", "/page.mjs", "/nonsense"):
        assert terminals.get(path, token)[0] == 401
    with pytest.raises(InvalidStatus) as refused:
        terminals.window(Authorization=f"token {token}" if token.isascii() else "token x")
    assert refused.value.response.status_code == 401


def test_the_page_needs_no_other_host(terminals: Terminals) -> None:
    status, headers, page = terminals.get("/")
    assert status == 200
    assert "default-src 'none'; script-src 'self';" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert b"//" not in page
    for name in re.findall(rb'(?:href|src)="([^":]+)"', page):
        assert terminals.get("/" + name.decode())[0] == 200
    _, _, script = terminals.get("/page.mjs")
    for name in re.findall(rb'from "\./([^"]+)"', script):
        status, headers, _ = terminals.get("/" + name.decode())
        assert (status, headers["Content-Type"]) == (200, "text/javascript; charset=utf-8")
    for path in ("/../shell.py", "/vendor/LICENSE-xterm", "/%2e%2e/shell.py", "/page.html", "/attach"):
        assert terminals.get(path)[0] == 404
    assert terminals.get("")[2] == page, "without a slash it is sent on"


def test_vendored_files_are_what_was_published() -> None:
    listed = re.findall(r"^([0-9a-f]{64})  (\S+)$", (VENDOR / "README.md").read_text(), re.MULTILINE)
    assert {name for _, name in listed} == {path.name for path in VENDOR.iterdir()} - {"README.md"}
    for digest, name in listed:
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


def test_terminals_and_windows_are_few(master: Master, tmp_path: Path) -> None:
    terminals = Terminals(master, tmp_path)
    with terminals.shell.running():
        windows = [terminals.window(f"?name=t{number}") for number in range(_terminals.MOST_TERMINALS)]
        assert terminals.refused("?name=more") == 4001
        windows += [terminals.window("?name=t0") for _ in range(_terminals.MOST_WINDOWS - len(windows))]
        assert terminals.refused("?name=t0") == 4001
        windows[-1].close()
        windows[1].type("exit\n")
        windows[1].until(kind="ended")
        windows[1].closed()
        listed = json.loads(terminals.get("/terminals")[2])
        assert {"name": "t1", "ended": True, "windows": 0} in listed
        windows.append(terminals.window("?name=more"))
        assert {each["name"] for each in json.loads(terminals.get("/terminals")[2])} == {
            *(f"t{number}" for number in range(8) if number != 1),
            "more",
        }
        for window in windows:
            window.close()


def test_they_come_back_if_their_process_ends_and_ssh_goes_on(master: Master, tmp_path: Path) -> None:
    import psutil

    terminals = Terminals(master, tmp_path)
    with terminals.shell.running() as process:
        window = terminals.window()
        (server,) = [
            each for each in psutil.Process(process.pid).children() if "determined.exec.terminal" in each.cmdline()
        ]
        window.type("echo my pid is $$.\n")
        found = re.search(r"my pid is (\d+)\.", window.read(r"my pid is \d+\."))
        assert found is not None
        session = psutil.Process(int(found[1]))
        server.kill()
        deadline = time.monotonic() + 20
        while True:
            try:
                fresh = terminals.window(window.where)
                break
            except (OSError, WebSocketException):
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert fresh.hello["epoch"] != window.hello["epoch"]
        assert psutil.wait_procs([session], timeout=20)[0], "what ran in them receives SIGHUP"
        assert "have ended with status -9, and start anew" in terminals.shell.log.read_text()
        assert terminals.shell.ssh("echo in")[1] == "in\n"
        process.terminate()
        assert process.wait(30) in (0, 143)


def test_a_shell_without_a_token_has_no_terminals(master: Master, tmp_path: Path) -> None:
    terminals = Terminals(master, tmp_path)
    del terminals.shell.env["DET_TERMINAL_TOKEN"]
    with terminals.shell.running():
        assert terminals.shell.ssh("echo in")[1] == "in\n"
        with pytest.raises(OSError):
            terminals.window()


def test_scrollback_keeps_the_newest() -> None:
    kept = Scrollback(10)
    kept.append(b"0123456789")
    kept.append(b"abc")
    assert (kept.start, kept.end, kept.read(3, 100), kept.read(12, 5), kept.read(13, 5)) == (
        3,
        13,
        b"3456789abc",
        b"c",
        b"",
    )


def test_a_window_that_is_woken_as_it_closes_is_closed() -> None:
    """Else the server sends on to a window that is gone, and waits for that before it tells the window why."""

    async def run() -> None:
        window = cast("Any", SimpleNamespace(wake=asyncio.Event()))
        waiting = asyncio.create_task(terminal._woken(window))
        await asyncio.sleep(0.01)
        window.wake.set()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(run())


def test_a_window_is_woken_or_has_a_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_BEAT_S", 0.01)

    async def run() -> None:
        window = cast("Any", SimpleNamespace(wake=asyncio.Event()))
        assert not await terminal._woken(window)
        window.wake.set()
        assert await terminal._woken(window)

    asyncio.run(run())
