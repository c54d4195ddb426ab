"""The embedded cluster as a user has it: `det up`, `det down`, what goes wrong at them, and `det` against it.

The tests of the first part share one running cluster; each makes its own experiments, and leaves the cluster up.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pytest
from jsonschema import Draft202012Validator

from tests.kit.embedded import PARTS, Embedded
from tests.kit.scripts import TRAIN
from tests.kit.servers import REPOSITORY, free_port
from workers.temporal_server import find_or_get

CONFIG = """
name: e2e
entrypoint: python3 train.py
hyperparameters:
  quality: 0.25
  sleep: {sleep}
searcher: {{name: single, metric: accuracy, smaller_is_better: false, max_length: {length}}}
max_restarts: 0
"""
PASSWORD = re.compile(r"admin's password, shown once: (\S+)")
DET = Path(sys.executable).with_name("det")
"""The installed command, as people call it."""
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Shared:
    """The cluster that the tests share, and what its first start printed."""

    cluster: Embedded
    first_output: str


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    cluster = _without_password(tmp_path_factory.mktemp("e2e"))
    try:
        done = _det(cluster, "up", "--launcher", "process", "--slots", "2")
        assert done.returncode == 0, done.stdout + done.stderr
        yield Shared(cluster, done.stdout)
    finally:
        cluster.run("down")


@pytest.fixture
def running(shared: Shared) -> Embedded:
    cluster = shared.cluster
    if cluster.run("status").returncode != 0:  # a test that failed left it down: the next one is about something else
        cluster.up()
    return cluster


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Embedded]:
    """A cluster that was never started."""
    cluster = _without_password(tmp_path)
    try:
        yield cluster
    finally:
        cluster.run("down")


# -- one running cluster ----------------------------------------------------------------------------------------------


def test_up_says_where_it_is_and_a_second_up_changes_nothing(shared: Shared) -> None:
    running, first = shared.cluster, shared.first_output
    for variable in ("UNDETERRED_PORT", "UNDETERRED_TEMPORAL_UI_PORT"):
        assert f"http://localhost:{running.environment[variable]}" in first
    assert str(running.folder) in first
    (password,) = PASSWORD.findall(first)
    before = {part: running.pid(part) for part in PARTS}
    named = {part: Path(f"/proc/{before[part]}/comm").read_text().strip() for part in PARTS if part != "temporal"}
    assert named == {part: f"det-{part}"[:15] for part in named}, "each is a copy of `det up`, and loads nothing again"

    again = _det(running, "up")
    assert again.returncode == 0, again.stderr
    assert f"http://localhost:{running.environment['UNDETERRED_PORT']}" in again.stdout
    assert "password" not in again.stdout
    assert password not in again.stdout
    assert {part: running.pid(part) for part in PARTS} == before

    assert "'admin'" in _ok(_det(running, "user", "whoami"))
    assert _ok(_det(running, "experiment", "list")).splitlines()[0].split()[:3] == ["ID", "|", "Owner"]
    elsewhere = {"DET_DEBUG_CONFIG_PATH": str(running.folder / "elsewhere")}
    assert "Logged in" in _ok(_det(running, "user", "login", "admin", stdin=password, **elsewhere))
    status = _ok(_det(running, "status"))
    assert all(f"{part:13} runs, pid {before[part]}" in status for part in PARTS)


def test_finished_experiment_can_be_read_and_downloaded(running: Embedded, tmp_path: Path) -> None:
    experiment = running.create(CONFIG.format(sleep=0, length=3), TRAIN)
    assert "COMPLETED" in _ok(_det(running, "experiment", "wait", str(experiment), "--polling-interval", "0.2"))
    (trial,) = json.loads(_ok(_det(running, "experiment", "list-trials", str(experiment), "--json")))

    log = _ok(_det(running, "trial", "logs", str(trial["id"])))
    assert [line for line in log.splitlines() if "step " in line][-1].endswith("step 3")

    (checkpoint,) = json.loads(_ok(_det(running, "experiment", "list-checkpoints", str(experiment), "--json")))
    described = _ok(_det(running, "checkpoint", "describe", checkpoint["uuid"]))
    assert re.search(r"# of Batches +\| 3\n", described)
    assert re.search(r"Validation accuracy +\| 0\.75\n", described)

    _ok(_det(running, "experiment", "download", str(experiment), "-o", str(tmp_path)))
    assert json.loads((tmp_path / checkpoint["uuid"] / "state.json").read_text()) == {"steps": 3}


def test_config_schema_is_json_schema(running: Embedded) -> None:
    schema = json.loads(_ok(_det(running, "experiment", "config-schema")))
    Draft202012Validator.check_schema(schema)
    assert {"entrypoint", "searcher", "hyperparameters"} <= schema["properties"].keys()


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("searcher: {name: single\nentrypoint: x", 1, ["config.yaml:2:"]),
        (
            CONFIG.format(sleep=0, length=1).replace("single", "adaptive_ahsa"),
            1,
            ["<config>.searcher", 'did you mean "adaptive_asha"'],
        ),
        (CONFIG.format(sleep=0, length=1).replace("max_restarts", "max_restart"), 1, ["max_restarts", "did you mean"]),
    ],
    ids=["bad YAML", "unknown searcher", "misspelt key"],
)
def test_wrong_configuration_is_told_and_creates_nothing(
    running: Embedded, tmp_path: Path, text: str, code: int, expected: list[str]
) -> None:
    (tmp_path / "config.yaml").write_text(text)
    (tmp_path / "model").mkdir()
    done = _creates_nothing(running, str(tmp_path / "config.yaml"), str(tmp_path / "model"))
    assert done.returncode == code
    assert all(words.lower() in done.stderr.lower() for words in expected), done.stderr


@pytest.mark.parametrize("missing", ["config.yaml", "model"])
def test_missing_file_or_folder_is_told_and_creates_nothing(running: Embedded, tmp_path: Path, missing: str) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG.format(sleep=0, length=1))
    (tmp_path / "model").mkdir()
    given = {"config.yaml": str(tmp_path / "config.yaml"), "model": str(tmp_path / "model")}
    given[missing] = str(tmp_path / "absent")
    done = _creates_nothing(running, *given.values())
    assert done.returncode == 1
    assert given[missing] in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_second_user_sees_but_may_not_kill_what_is_not_his(running: Embedded) -> None:
    _ok(_det(running, "user", "create", "eve", "--password", "long enough to pass"))
    eve = {"DET_DEBUG_CONFIG_PATH": str(running.folder / "eve")}
    assert "'eve'" in _ok(_det(running, "user", "login", "eve", stdin="long enough to pass", **eve))

    _write(running, CONFIG.format(sleep=0, length=1))
    of_admin = _created(_det(running, "experiment", "create", *_files(running), "--paused"))
    of_eve = _created(_det(running, "experiment", "create", *_files(running), **eve))
    _ok(_det(running, "experiment", "wait", str(of_eve), "--polling-interval", "0.2", **eve))

    seen = json.loads(_ok(_det(running, "experiment", "list", "--all", "--json", **eve)))
    assert {(e["id"], e["username"]) for e in seen} >= {(of_admin, "admin"), (of_eve, "eve")}
    _ok(_det(running, "experiment", "describe", str(of_admin), **eve))
    refused = _det(running, "experiment", "kill", str(of_admin), **eve)
    assert refused.returncode == 3
    assert refused.stderr.strip()
    assert "Traceback" not in refused.stderr
    assert _state(running, of_admin) == "PAUSED"
    _ok(_det(running, "experiment", "kill", str(of_admin)))


def test_interrupted_follow_leaves_the_experiment_running(running: Embedded) -> None:
    enough = running.folder / "followed-enough"
    _write(running, _until(enough))
    output = running.folder / "follow.txt"
    with output.open("w") as file:
        following = _start(running, file, "experiment", "create", *_files(running), "--follow")
        running.until(lambda: "RUNNING" in output.read_text(), 60, "the experiment runs")
        code = _interrupt(following)
    text = output.read_text()
    assert code == 130, text
    experiment = int(re.findall(r"Created experiment (\d+)", text)[0])
    assert f"det experiment follow {experiment}" in text
    assert "Traceback" not in text
    assert _state(running, experiment) == "ACTIVE"
    enough.touch()
    assert "COMPLETED" in _ok(_det(running, "experiment", "follow", str(experiment)))


# -- down and up again ------------------------------------------------------------------------------------------------


def test_experiment_goes_on_after_down_and_up(running: Embedded) -> None:
    enough = running.folder / "enough"
    experiment = running.create(_until(enough), TRAIN)
    trained = f"SELECT id FROM metrics WHERE trial_id IN (SELECT id FROM trials WHERE experiment_id = {experiment})"
    running.until(lambda: len(running.rows(trained)) >= 4, 60, "the trial trains")
    down = _det(running, "down")
    assert "1 running trial" in _ok(down)
    assert running.training() == {}
    status = _det(running, "status")
    assert status.returncode == 1
    assert status.stdout.count("does not run") == len(PARTS)
    assert "stopped" in _ok(_det(running, "down")), "a second `down` is harmless"

    _ok(_det(running, "up"))
    assert _state(running, experiment) == "ACTIVE"
    before = len(running.rows(trained))
    running.until(lambda: len(running.rows(trained)) > before, 60, "the trial trains again")
    enough.touch()
    _ok(_det(running, "experiment", "wait", str(experiment), "--polling-interval", "0.2"))
    query = f"SELECT state, restarts FROM trials WHERE experiment_id = {experiment}"
    assert running.rows(query) == [("COMPLETED", 0)]


def test_what_ended_while_no_agent_was_there_is_known_as_soon_as_one_is(running: Embedded) -> None:
    experiment = running.create(CONFIG.format(sleep=0.2, length=10), TRAIN)
    running.until(lambda: len(running.training()) == 1, 60, "the trial trains")
    os.kill(running.pid("agent"), signal.SIGKILL)
    running.until(lambda: running.training() == {}, 60, "the trial has trained")
    running.up()
    # long before the next heartbeat of its container would be missed
    running.until(lambda: _state(running, experiment) == "COMPLETED", 15, "the end is known")
    query = f"SELECT state, restarts, total_batches FROM trials WHERE experiment_id = {experiment}"
    assert running.rows(query) == [("COMPLETED", 0, 10)]


def test_two_ups_at_once_and_pids_of_others(running: Embedded) -> None:
    _ok(_det(running, "down"))
    for part in PARTS:  # after a restart of the machine, such a pid can be anybody's
        (running.folder / "run" / f"{part}.pid").write_text(json.dumps({"pid": os.getpid(), "started": "1"}))

    outputs = [running.folder / "first.txt", running.folder / "second.txt"]
    with outputs[0].open("w") as first, outputs[1].open("w") as second:
        both = [_start(running, file, "up") for file in (first, second)]
        codes = [process.wait(90) for process in both]
    texts = [path.read_text() for path in outputs]
    assert sorted(codes) == [0, 1], texts
    assert "another `det up` or `det down` works on" in texts[codes.index(1)]
    assert not any("Traceback" in text for text in texts)
    assert "'admin'" in _ok(_det(running, "user", "whoami"))
    _ok(_det(running, "status"))


def test_damaged_state_can_be_moved_away(shared: Shared) -> None:
    running = shared.cluster
    _ok(_det(running, "down"))
    state = running.folder / "cluster.json"
    text = state.read_text()
    experiments = running.rows("SELECT id FROM experiments")
    for wrong, words in (
        (text[: len(text) // 2], "damaged"),
        (json.dumps(json.loads(text) | {"format": 2}), "newer version (format 2"),
    ):
        state.write_text(wrong)
        for verb in ("up", "down", "status"):
            done = _det(running, verb)
            assert done.returncode == 1
            assert words in done.stderr
            assert "UNDETERRED_HOME" in done.stderr
            assert "Traceback" not in done.stderr
        assert state.read_text() == wrong, "it is left as it is"

    state.rename(state.with_suffix(".old"))
    done = _det(running, "up")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passwords are unchanged" in done.stdout
    assert not PASSWORD.findall(done.stdout), "admin keeps the password"
    assert "Traceback" not in done.stderr
    assert running.rows("SELECT id FROM experiments") == experiments
    (password,) = PASSWORD.findall(shared.first_output)
    assert "Logged in" in _ok(_det(running, "user", "login", "admin", stdin=password))


# -- starts that fail, or are interrupted -----------------------------------------------------------------------------


def test_other_host_joins_by_the_command_that_the_token_came_with(fresh: Embedded, tmp_path: Path) -> None:
    fresh.environment["UNDETERRED_GATEWAY_PORT"] = str(free_port())
    told = _ok(_det(fresh, "up", "--launcher", "process", "--slots", "0", "--host", "127.0.0.2"))
    assert f"join through port {fresh.environment['UNDETERRED_GATEWAY_PORT']}" in told
    refused = _det(fresh, "agent", "run", "--name", "second", "--folder", str(tmp_path / "second"))
    assert refused.returncode == 1
    assert "det agent join-token create" in refused.stderr
    command = _ok(_det(fresh, "agent", "join-token", "create", "--uses", "1")).splitlines()[-1].split()
    assert command[0] == "det"
    with (tmp_path / "agent.log").open("w") as log:
        given = ("--name", "second", "--slots", "1", "--label", "rack=7", "--launcher", "process",
                 "--folder", str(tmp_path / "second"), "--trial-python", sys.executable)  # fmt: skip
        agent = _start_command(fresh, log, str(DET), *command[1:], *given)
        try:

            def is_there() -> bool:
                assert agent.poll() is None, (tmp_path / "agent.log").read_text()
                agents = json.loads(_ok(_det(fresh, "agent", "list", "--json")))
                return any(each["id"] == "second" and each["enabled"] and each["labels"] == "rack=7" for each in agents)

            fresh.until(is_there, 60, "the agent is there")
            experiment = fresh.create(CONFIG.format(sleep=0, length=3), TRAIN)
            assert "COMPLETED" in _ok(_det(fresh, "experiment", "wait", str(experiment), "--polling-interval", "0.2"))
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(30) == 0
        finally:
            agent.kill()
            agent.wait()
    fresh.until(lambda: _det(fresh, "agent", "remove", "second").returncode == 0, 60, "it is away, and removed")
    assert "second" not in _ok(_det(fresh, "agent", "list"))


def test_a_cluster_as_determineds_users_start_and_end_it(fresh: Embedded) -> None:
    """`deploy local`: a master, an agent beside it, and no record left in the end."""
    port = fresh.environment["UNDETERRED_PORT"]
    fresh.environment["UNDETERRED_GATEWAY_PORT"] = str(free_port())
    up = _det(fresh, "deploy", "local", "master-up", "--host", "127.0.0.2", "--db-password", "x", "--no-autorestart")
    assert "--db-password is left aside: the records are files of this user" in up.stderr
    assert "(0 slots)" in _ok(up)
    name = ("--agent-name", "beside")
    start = ("deploy", "local", "agent-up", "localhost", "--master-port", port, "--no-gpu", *name)
    assert "Agent 'beside' of http://localhost" in _ok(_det(fresh, *start))
    agents = {agent["id"]: agent for agent in json.loads(_ok(_det(fresh, "agent", "list", "--json")))}
    assert agents["beside"]["enabled"] is True
    assert "runs already" in _det(fresh, *start).stderr
    assert "these do: beside" in _det(fresh, "deploy", "local", "agent-down", "--agent-name", "another").stderr
    assert _ok(_det(fresh, "deploy", "local", "agent-down", "--all")) == "Stopped agent 'beside'\n"
    assert "all records are deleted" in _ok(_det(fresh, "deploy", "local", "master-down", "--delete-db"))
    assert not list(fresh.folder.glob("*.db*"))
    assert not (fresh.folder / "cluster.json").exists()


def test_temporal_is_started_again_when_a_port_that_it_chose_was_taken_by_then(fresh: Embedded, tmp_path: Path) -> None:
    real = find_or_get(print)
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "temporal"
    taken = "can't set frontend HTTP port 40001: listen tcp 127.0.0.1:40001: bind: address already in use"
    script.write_text(f'#!/bin/sh\n[ -e begun ] && exec {real} "$@"\ntouch begun\necho "{taken}"\nexit 1\n')
    script.chmod(0o755)
    fresh.environment["PATH"] = f"{script.parent}:{os.environ['PATH']}"
    _ok(_det(fresh, "up", "--launcher", "process", "--slots", "0"))
    assert taken in (fresh.folder / "logs" / "temporal.log").read_text()
    assert "'admin'" in _ok(_det(fresh, "user", "whoami"))


def test_port_in_use_names_the_port_its_holder_and_the_variable(fresh: Embedded) -> None:
    port = fresh.environment["UNDETERRED_PORT"]
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", int(port)))
        holder.listen()
        done = _det(fresh, "up")
    assert done.returncode == 1
    name = Path("/proc/self/comm").read_text().strip()
    expected = f"port {port} is in use by {name} (pid {os.getpid()}): choose another with UNDETERRED_PORT"
    assert done.stderr.strip() == expected
    assert not list(fresh.folder.glob("run/*")), "nothing was started"


@pytest.mark.parametrize("variable", ["UNDETERRED_PORT", "UNDETERRED_TEMPORAL_PORT", "UNDETERRED_TEMPORAL_UI_PORT"])
@pytest.mark.parametrize("value", ["http", "65536"])
def test_bad_port_is_told(fresh: Embedded, variable: str, value: str) -> None:
    fresh.environment[variable] = value
    done = _det(fresh, "up")
    assert done.returncode == 1
    assert done.stderr.strip() == f"{variable}: {value!r}: expected a port number from 1 to 65535"
    assert not list(fresh.folder.glob("run/*"))


def test_unwritable_data_folder_is_told(fresh: Embedded, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    fresh.environment["UNDETERRED_HOME"] = str(tmp_path / "file" / "home")
    for verb in ("up", "down", "status"):
        done = _det(fresh, verb)
        assert "Traceback" not in done.stderr
        if verb == "up":
            assert done.returncode == 1
            assert "can't be written" in done.stderr
            assert "UNDETERRED_HOME" in done.stderr


def test_interrupted_up_goes_on_and_still_shows_the_password(fresh: Embedded) -> None:
    shown: list[str] = []
    for moment in ("loading", "temporal.pid", "agent.pid"):
        output = fresh.folder.parent / f"{moment}.txt"
        with output.open("w") as file:
            if moment == "loading":
                starting = _start_command(fresh, file, sys.executable, "-m", "workers.embedded", "up")
                maps = Path(f"/proc/{starting.pid}/maps")
                fresh.until(lambda maps=maps: "pydantic_core" in maps.read_text(), 60, "it loads its modules")
            else:
                starting = _start(fresh, file, "up", "--launcher", "process", "--slots", "2")
                fresh.until((fresh.folder / "run" / moment).exists, 60, moment)
            code = _interrupt(starting)
        text = output.read_text()
        assert code == 130, (moment, text)
        assert "Traceback" not in text, (moment, text)
        assert "interrupted" in text, (moment, text)
        if moment.endswith(".pid"):
            assert "`det up` goes on from here" in text
        shown += PASSWORD.findall(text)
        _ok(_det(fresh, "down"))  # so that the next moment is one of this start

    shown += PASSWORD.findall(_ok(_det(fresh, "up", "--launcher", "process", "--slots", "2")))
    shown += PASSWORD.findall(_ok(_det(fresh, "up")))
    assert len(shown) == 1
    assert "'admin'" in _ok(_det(fresh, "user", "whoami"))
    elsewhere = {"DET_DEBUG_CONFIG_PATH": str(fresh.folder / "elsewhere")}
    _ok(_det(fresh, "user", "login", "admin", stdin=shown[0], **elsewhere))


# -- the example ------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(240)
def test_demo_finds_a_good_model(tmp_path: Path) -> None:
    python = REPOSITORY / ".venv-trial" / "bin" / "python"
    environment = {
        "UNDETERRED_TRIAL_PYTHON": str(python if python.exists() else sys.executable),
        "TMPDIR": str(tmp_path),
        "UNDETERRED_LAUNCHER": "process",
    }
    cluster = Embedded(tmp_path, environment=environment)
    try:
        done = subprocess.run(
            [sys.executable, REPOSITORY / "examples" / "digits" / "demo.py"],
            env=cluster.environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    finally:
        cluster.run("down")
    assert done.returncode == 0, done.stdout + done.stderr
    (accuracy,) = re.findall(r"validation accuracy ([0-9.]+)", done.stdout)
    assert float(accuracy) >= 0.95
    assert "Traceback" not in done.stderr


# -- helpers ----------------------------------------------------------------------------------------------------------


def _without_password(folder: Path) -> Embedded:
    cluster = Embedded(folder)
    del cluster.environment["UNDETERRED_ADMIN_PASSWORD"]
    return cluster


def _det(cluster: Embedded, *arguments: str, stdin: str = "", **environment: str) -> Done:
    return subprocess.run(
        [DET, *arguments],
        env=cluster.environment | environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _ok(done: Done) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def _start(cluster: Embedded, output: TextIO, *arguments: str) -> subprocess.Popen[bytes]:
    """`det …`, to be interrupted."""
    return _start_command(cluster, output, DET, *arguments)


def _start_command(cluster: Embedded, output: TextIO, *command: str | Path) -> subprocess.Popen[bytes]:
    """In a process group of its own, as a terminal starts it."""
    return subprocess.Popen(
        command,
        env=cluster.environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # a test run in the background ignores SIGINT, and so would this
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def _interrupt(process: subprocess.Popen[bytes]) -> int:
    """Ctrl-C: to the whole process group. Returns the exit code."""
    os.killpg(process.pid, signal.SIGINT)
    return process.wait(60)


def _write(cluster: Embedded, config: str) -> None:
    (cluster.folder / "model").mkdir(exist_ok=True)
    (cluster.folder / "model" / "train.py").write_text(TRAIN)
    (cluster.folder / "config.yaml").write_text(config)


def _until(enough: Path) -> str:
    """A configuration of a trial that trains until a file is there, however slow the machine is meanwhile."""
    endless = CONFIG.format(sleep=0.2, length=1_000_000)
    return endless.replace("hyperparameters:", f"hyperparameters:\n  until: {enough}")


def _files(cluster: Embedded) -> tuple[str, str]:
    return str(cluster.folder / "config.yaml"), str(cluster.folder / "model")


def _created(done: Done) -> int:
    return int(re.findall(r"Created experiment (\d+)", _ok(done))[0])


def _state(cluster: Embedded, experiment: int) -> str:
    ((state,),) = cluster.rows(f"SELECT state FROM experiments WHERE id = {experiment}")
    return str(state)


def _creates_nothing(cluster: Embedded, *files: str) -> Done:
    count = cluster.rows("SELECT count(*) FROM experiments")
    done = _det(cluster, "experiment", "create", *files)
    assert "Traceback" not in done.stdout + done.stderr
    assert "Created" not in done.stdout
    assert cluster.rows("SELECT count(*) FROM experiments") == count
    return done


def test_files_are_of_their_user_alone_and_the_password_is_nowhere_to_be_read(fresh: Embedded) -> None:
    fresh.environment["UNDETERRED_ADMIN_PASSWORD"] = "Said-by-the-shell-1"
    fresh.folder.mkdir()
    fresh.folder.chmod(0o755)
    told = _det(fresh, "up")
    try:
        assert f"{fresh.folder} was open to other users of this machine; it is closed to them now" in told.stdout
        assert fresh.folder.stat().st_mode & 0o077 == 0
        files = [*fresh.folder.glob("*.db*"), *fresh.folder.glob("logs/*"), fresh.folder / "cluster.json"]
        assert len(files) >= 7
        assert {str(path): oct(path.stat().st_mode & 0o077) for path in files if path.stat().st_mode & 0o077} == {}
        password = fresh.environment["UNDETERRED_ADMIN_PASSWORD"].encode()
        seen = 0
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "cwd").readlink() == fresh.folder:
                    seen += 1
                    assert password not in (process / "environ").read_bytes(), (process / "comm").read_text()
        assert seen >= 4
    finally:
        _det(fresh, "down")


def test_nothing_works_on_with_the_lock_when_up_is_killed(fresh: Embedded) -> None:
    up = subprocess.Popen(
        [DET, "up", "--slots", "1"], env=fresh.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 90
    while not (fresh.folder / "lock").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    up.kill()
    up.wait()
    with (fresh.folder / "lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < deadline, "it works on"
                time.sleep(0.05)
        time.sleep(1.0)  # nobody else takes it, and what would have been started is not
    assert _det(fresh, "up").returncode == 0
    assert _det(fresh, "down").returncode == 0
