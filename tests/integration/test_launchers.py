"""The contract of launchers, held against each of them, and what is particular to one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.server
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest

from activities.launchers import entry
from activities.launchers.base import (
    ContainerExit,
    ContainerSpec,
    ExitCause,
    HostDevice,
    Launcher,
    LaunchError,
    LogLine,
    Mount,
)
from activities.launchers.docker import DockerLauncher
from activities.launchers.process import ProcessLauncher
from tests.kit.servers import REPOSITORY, docker_engine, trial_image

LIMIT_S = 20.0


async def read_all(launcher: Launcher, container_id: str, after: int = -1, limit: int = 1000) -> list[LogLine]:
    """Everything a container that ended wrote."""
    lines: list[LogLine] = []
    while batch := await launcher.logs(container_id, after, limit):
        lines += batch
        after = batch[-1].offset
    return lines


async def end_of(launcher: Launcher, container_id: str) -> ContainerExit:
    found = await launcher.wait(container_id, LIMIT_S)
    assert found is not None, "still runs"
    return found


async def line_from(launcher: Launcher, container_id: str, text: str) -> None:
    """Wait until a running container wrote a line that has `text` in it."""
    async with asyncio.timeout(LIMIT_S):
        while not any(text in line.text for line in await launcher.logs(container_id, -1)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class World:
    """Where a launcher puts its containers; several launcher objects may be made on the same."""

    image = ""
    python = ""
    expression = ""
    imports = """
from pathlib import Path
from activities.launchers.docker import DockerLauncher
from activities.launchers.process import ProcessLauncher
"""
    seen_within_s = 0.5  # the end of a container: on a loaded machine; measured in bench
    tells_streams = True  # which of both a line was written to
    variables: tuple[str, ...] = ("DET_CONTAINER_DIR",)  # how those begin that it adds to a container's own

    def __init__(self, shared: Path) -> None:
        self.shared = shared
        self.made: list[Launcher] = []

    def launcher(self) -> Launcher:
        """A new launcher object, as a restarted agent has it."""
        scope: dict[str, Any] = {}
        exec(f"{self.imports}\nlauncher = {self.expression}", scope)
        self.made.append(scope["launcher"])
        return scope["launcher"]

    def spec(self, *argv: str, **more: Any) -> ContainerSpec:
        more.setdefault("env", {})
        return ContainerSpec(container_id=f"test-{uuid.uuid4()}", argv=argv, image=self.image, **more)

    def code(self, text: str, *args: str, **more: Any) -> ContainerSpec:
        """A container that runs Python code."""
        return self.spec(self.python, "-c", textwrap.dedent(text), *args, **more)

    def shared_folder(self) -> tuple[Sequence[Mount], str]:
        """Mounts, and the path in the container, of `self.shared`."""
        return (Mount(self.shared, "/shared"),), str(self.shared)


class ProcessWorld(World):
    python = sys.executable

    def __init__(self, shared: Path, root: Path) -> None:
        super().__init__(shared)
        self.root = root
        self.expression = f"ProcessLauncher(Path({str(root)!r}))"


class DockerWorld(World):
    python = "python3"

    def __init__(self, shared: Path, image: str) -> None:
        super().__init__(shared)
        self.image = image
        self.agent = f"agent-{uuid.uuid4()}"
        self.expression = f"DockerLauncher({self.agent!r}, network='undeterred-test')"

    def shared_folder(self) -> tuple[Sequence[Mount], str]:
        return super().shared_folder()[0], "/shared"


W = TypeVar("W", bound=World)


@contextlib.asynccontextmanager
async def cleaned(world: W) -> AsyncGenerator[W]:
    """Nothing stays behind, whatever the test did."""
    try:
        yield world
    finally:
        launcher = world.launcher()
        for status in await launcher.list():
            await launcher.remove(status.container_id)
        for made in world.made:
            await made.close()


class LauncherContract:
    """Inherit, and give a fixture `world`."""

    @pytest.fixture
    async def launcher(self, world: World) -> Launcher:
        launcher = world.launcher()
        await launcher.check()
        return launcher

    async def test_one_run_when_started_again_and_again(self, world: World, launcher: Launcher) -> None:
        spec = world.code("import time; print('ran', flush=True); time.sleep(0.3)")
        await asyncio.gather(*(launcher.start(spec) for _ in range(4)))
        assert await launcher.wait(spec.container_id, 0) is None
        await world.launcher().start(spec)
        assert (await end_of(launcher, spec.container_id)).code == 0
        await launcher.start(spec)
        assert [line.text for line in await read_all(launcher, spec.container_id)] == ["ran"]

    async def test_exit_code(self, world: World, launcher: Launcher) -> None:
        specs = {code: world.spec("sh", "-c", f"exit {code}") for code in (0, 1, 3, 255)}
        for spec in specs.values():
            await launcher.start(spec)
        for code, spec in specs.items():
            found = await end_of(launcher, spec.container_id)
            assert (found.cause, found.code) == (ExitCause.EXITED, code)
            assert abs((datetime.now(UTC) - found.ended_at).total_seconds()) < LIMIT_S
            assert await launcher.wait(spec.container_id, 0) == found  # the same, whenever it is asked

    @pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGTERM, signal.SIGKILL])
    async def test_exit_code_when_a_signal_ended_it(self, world: World, launcher: Launcher, number: int) -> None:
        spec = world.spec("sh", "-c", f"kill -{int(number)} $$")
        await launcher.start(spec)
        found = await end_of(launcher, spec.container_id)
        assert (found.cause, found.code) == (ExitCause.EXITED, 128 + number)

    async def test_none_when_it_still_runs_after_the_time_out(self, world: World, launcher: Launcher) -> None:
        spec = world.spec("sleep", "60")
        await launcher.start(spec)
        began = time.monotonic()
        assert await launcher.wait(spec.container_id, 0.2) is None
        assert 0.15 < time.monotonic() - began < 20.0

    async def test_end_is_seen_soon(self, world: World, launcher: Launcher) -> None:
        spec = world.spec("sleep", "0.3")
        await launcher.start(spec)
        found = await end_of(launcher, spec.container_id)
        assert (datetime.now(UTC) - found.ended_at).total_seconds() < world.seen_within_s

    async def test_unknown_container(self, launcher: Launcher) -> None:
        found = await launcher.wait("never-heard-of", 1.0)
        assert found is not None
        assert (found.cause, found.code) == (ExitCause.LOST, None)
        await launcher.kill("never-heard-of", 1.0)
        await launcher.remove("never-heard-of")
        assert await launcher.logs("never-heard-of", -1) == []

    async def test_logs_of_both_streams_keep_their_offsets(self, world: World, launcher: Launcher) -> None:
        text = """
        import sys, time
        for i in range(50):
            print("out", i, flush=True)
            print("err", i, file=sys.stderr, flush=True)
            if i % 10 == 0: time.sleep(0.02)
        print("no newline", end="")
        """
        spec = world.code(text)
        await launcher.start(spec)
        live: list[LogLine] = []
        while await launcher.wait(spec.container_id, 0.02) is None:
            live += await launcher.logs(spec.container_id, live[-1].offset if live else -1)
        live += await read_all(launcher, spec.container_id, live[-1].offset if live else -1)
        if world.tells_streams:
            assert all(line.stdtype == ("stderr" if line.text.startswith("err") else "stdout") for line in live)
        for stream in ("out", "err"):  # in order, each
            found = [line.text for line in live if line.text.startswith(stream)]
            assert found == [f"{stream} {i}" for i in range(50)]
        assert [line.text for line in live if line.text == "no newline"] == ["no newline"]
        assert len(live) == 101
        offsets = [line.offset for line in live]
        assert offsets == sorted(set(offsets))
        assert min(offsets) >= 0
        other = world.launcher()
        again = await read_all(other, spec.container_id, limit=7)
        assert [(line.offset, line.stdtype, line.text) for line in again] == [
            (line.offset, line.stdtype, line.text) for line in live
        ]
        assert [line.text for line in await other.logs(spec.container_id, live[60].offset, 3)] == [
            line.text for line in live[61:64]
        ]
        assert await other.logs(spec.container_id, live[0].offset, 1) == [
            again[1]
        ]  # back again: not acknowledged for ever
        assert await other.logs(spec.container_id, live[-1].offset) == []

    async def test_files_of_the_run_folder_when_it_ended(self, world: World, launcher: Launcher) -> None:
        text = """
        import os, sys
        os.makedirs(f"{sys.argv[1]}/spool/folder")
        os.chdir(f"{sys.argv[1]}/spool")
        open("b", "wb").write(bytes(range(256)) * 20_000)
        open("a", "w").write("first")
        open("folder/c", "w").write("deeper")
        os.symlink("/etc/passwd", "link")
        os.mkfifo("pipe")
        os.symlink("spool", f"{sys.argv[1]}/other")
        os.kill(os.getpid(), 9)
        """
        spec = world.code(text)
        run_dir = launcher.container_paths(spec.container_id).run_dir
        spec = dataclasses.replace(spec, argv=[*spec.argv, run_dir])
        await launcher.start(spec)
        assert (await end_of(launcher, spec.container_id)).code == 137
        found = await world.launcher().run_files(spec.container_id, "spool")
        try:
            assert [name for name, _ in found.files] == ["a", "b"]
            assert [file.read() for _, file in found.files] == [b"first", bytes(range(256)) * 20_000]
            found.files[0][1].seek(2)
            assert found.files[0][1].readline() == b"rst"
        finally:
            found.close()
        for container_id, folder in ((spec.container_id, "absent"), (spec.container_id, "other"), ("nobody", "spool")):
            none = await launcher.run_files(container_id, folder)
            assert none.files == []
            none.close()

    async def test_files_that_are_too_large_are_not_read(self, world: World, launcher: Launcher) -> None:
        spec = world.code("import os, sys; os.makedirs(sys.argv[1]); open(sys.argv[1] + '/x', 'w').truncate(1 << 40)")
        run_dir = launcher.container_paths(spec.container_id).run_dir
        await launcher.start(dataclasses.replace(spec, argv=[*spec.argv, f"{run_dir}/spool"]))
        await end_of(launcher, spec.container_id)
        with pytest.MonkeyPatch.context() as patch:
            for module in ("docker", "process"):
                patch.setattr(f"activities.launchers.{module}.RUN_FILES_LIMIT", 10 << 20)
            with pytest.raises(ValueError, match="larger than"):
                await launcher.run_files(spec.container_id, "spool")

    async def test_flood(self, world: World, launcher: Launcher) -> None:
        spec = world.code("for i in range(100_000): print('line', i, '.' * 60)")
        await launcher.start(spec)
        await end_of(launcher, spec.container_id)
        lines = await read_all(launcher, spec.container_id)
        assert len(lines) == 100_000
        assert all(line.text == f"line {i} {'.' * 60}" for i, line in enumerate(lines))

    async def test_odd_bytes(self, world: World, launcher: Launcher) -> None:
        text = r"""
        import sys
        sys.stdout.buffer.write(b"bad \xff\xfe utf-8\n nul \0 byte\n50%\r100%\r\nlast \xc3\xa9 \xf0\x9f\x98\x80\n")
        sys.stdout.buffer.write(b"\n\x1b[31mred\x1b[0m <b>\n")
        """
        spec = world.code(text)
        await launcher.start(spec)
        await end_of(launcher, spec.container_id)
        assert [line.text for line in await read_all(launcher, spec.container_id)] == [
            "bad \ufffd\ufffd utf-8",
            " nul  byte",
            "50%",
            "100%",
            "last é 😀",
            "",
            "\x1b[31mred\x1b[0m <b>",
        ]

    async def test_long_line_is_cut_with_a_mark(self, world: World, launcher: Launcher) -> None:
        spec = world.code("print('x' * 1_000_000); print('é' * 5000); print('y' * 8191); print('after')")
        await launcher.start(spec)
        await end_of(launcher, spec.container_id)
        lines = [line.text for line in await read_all(launcher, spec.container_id)]
        assert len(lines) == 4
        for cut, letter in ((lines[0], "x"), (lines[1], "é")):
            assert 8180 <= len(cut.encode()) <= 8191
            assert cut.startswith(letter * 4000)
            assert cut.endswith("[line cut at 8191 bytes]")
        assert lines[2:] == ["y" * 8191, "after"]

    async def test_kill_when_it_ignores_sigterm(self, world: World, launcher: Launcher) -> None:
        text = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        time.sleep(60)
        """
        spec = world.code(text)
        await launcher.start(spec)
        await line_from(launcher, spec.container_id, "ready")
        began = time.monotonic()
        await launcher.kill(spec.container_id, 0.3)
        assert 0.3 <= time.monotonic() - began < 20.0
        found = await end_of(world.launcher(), spec.container_id)
        assert (found.cause, found.code) == (ExitCause.KILLED, 137)
        await launcher.kill(spec.container_id, 0.3)
        assert await end_of(launcher, spec.container_id) == found

    async def test_kill_lets_it_end_in_the_grace(self, world: World, launcher: Launcher) -> None:
        text = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(0)))
        print("ready", flush=True)
        time.sleep(60)
        """
        spec = world.code(text)
        await launcher.start(spec)
        await line_from(launcher, spec.container_id, "ready")
        await launcher.kill(spec.container_id, 10.0)
        found = await end_of(world.launcher(), spec.container_id)
        assert (found.cause, found.code) == (ExitCause.KILLED, 0)
        assert [line.text for line in await read_all(launcher, spec.container_id)] == ["ready", "saved"]

    async def test_kill_changes_nothing_when_it_ended_before(self, world: World, launcher: Launcher) -> None:
        spec = world.spec("sh", "-c", "exit 4")
        await launcher.start(spec)
        found = await end_of(launcher, spec.container_id)
        await launcher.kill(spec.container_id, 0.1)
        assert await end_of(launcher, spec.container_id) == found
        assert (found.cause, found.code) == (ExitCause.EXITED, 4)

    @pytest.mark.parametrize("how", ["kill", "exit"])
    async def test_grandchildren_are_gone(self, world: World, launcher: Launcher, how: str) -> None:
        text = """
        import os, signal, subprocess, sys, time
        beat = '''
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork(): os._exit(0)
        os.setsid()
        while True:
            open(sys.argv[1], "a").write(".")
            time.sleep(0.02)
        '''.replace("\\n        ", "\\n")
        for name, env in (("marked", None), ("bare", {})):
            subprocess.Popen([sys.executable, "-c", beat, f"{sys.argv[1]}/{name}"], env=env)
        while not all(os.path.exists(f"{sys.argv[1]}/{name}") for name in ("marked", "bare")): time.sleep(0.01)
        print("ready", flush=True)
        if sys.argv[2] == "kill": time.sleep(60)
        """
        mounts, folder = world.shared_folder()
        spec = world.code(text, folder, how, mounts=mounts)
        await launcher.start(spec)
        began = time.monotonic()
        if how == "kill":
            await line_from(launcher, spec.container_id, "ready")
            await launcher.kill(spec.container_id, 0.2)
        found = await end_of(launcher, spec.container_id)  # although they hold its output open
        assert time.monotonic() - began < 10.0
        assert found.code == (137 if how == "kill" else 0) or found.cause is ExitCause.KILLED
        files = [world.shared / "marked", world.shared / "bare"]
        sizes = [file.stat().st_size for file in files]
        await asyncio.sleep(0.3)
        assert [file.stat().st_size for file in files] == sizes

    async def test_another_launcher_goes_on_with_it(self, world: World, launcher: Launcher) -> None:
        spec = world.code("import time; print('a', flush=True); time.sleep(0.5); print('b'); raise SystemExit(5)")
        await launcher.start(spec)
        await line_from(launcher, spec.container_id, "a")
        other = world.launcher()
        assert [(s.container_id, s.running) for s in await other.list()] == [(spec.container_id, True)]
        assert (await end_of(other, spec.container_id)).code == 5
        assert [line.text for line in await read_all(other, spec.container_id)] == ["a", "b"]

    async def test_container_lives_on_when_the_agent_is_killed(self, world: World, launcher: Launcher) -> None:
        spec = world.code("import time; print('up', flush=True); time.sleep(1.5); print('done')")
        agent = f"""
import asyncio, os, signal
from activities.launchers.base import ContainerSpec
{world.imports}
async def main():
    spec = ContainerSpec(container_id={spec.container_id!r}, argv={list(spec.argv)!r}, env={{}}, image={spec.image!r})
    await ({world.expression}).start(spec)
    os.killpg(0, signal.SIGKILL)
asyncio.run(main())
"""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", agent, cwd=REPOSITORY, process_group=0, stderr=subprocess.DEVNULL
        )
        assert await process.wait() == -signal.SIGKILL
        assert [status.running for status in await launcher.list()] == [True]
        await launcher.start(spec)
        assert (await end_of(launcher, spec.container_id)).code == 0
        assert [line.text for line in await read_all(launcher, spec.container_id)] == ["up", "done"]

    async def test_what_a_container_uses(self, world: World, launcher: Launcher) -> None:
        """Its processor time never goes back, and has that of processes that have ended."""
        work = "import subprocess, sys, time; held = bytearray(64 << 20); "
        burn = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
        spec = world.code(
            f"{work} subprocess.run([sys.executable, '-c', {burn!r}]); print('x', flush=True); time.sleep(60)"
        )
        await launcher.start(spec)
        if not launcher.runs_here:
            assert await launcher.usage(spec.container_id) is None, "its cluster measures it"
            return
        await line_from(launcher, spec.container_id, "x")
        used = await launcher.usage(spec.container_id)
        assert used is not None
        assert 0.5 <= used.cpu_s < 30
        assert 64 << 20 < used.memory_bytes < 512 << 20
        await launcher.kill(spec.container_id, 0)
        await end_of(launcher, spec.container_id)
        assert await launcher.usage(spec.container_id) is None
        assert await launcher.usage("nowhere-0") is None

    async def test_list_and_remove(self, world: World, launcher: Launcher) -> None:
        assert list(await launcher.list()) == []
        ended = world.spec("true", labels={"trial": "7"})
        running = world.spec("sleep", "60")
        for spec in (ended, running):
            await launcher.start(spec)
        await end_of(launcher, ended.container_id)
        found = {status.container_id: status for status in await world.launcher().list()}
        assert set(found) == {ended.container_id, running.container_id}
        assert not found[ended.container_id].running
        assert found[ended.container_id].labels == {"trial": "7"}
        assert found[running.container_id].running
        for spec in (ended, running, ended):
            await launcher.remove(spec.container_id)
        assert list(await launcher.list()) == []
        assert (await end_of(launcher, running.container_id)).cause is ExitCause.LOST
        assert await launcher.logs(ended.container_id, -1) == []

    async def test_missing_command(self, world: World, launcher: Launcher) -> None:
        spec = world.spec("no-such-command", "x")
        await launcher.start(spec)
        assert (await end_of(launcher, spec.container_id)).code == 127
        assert any("no-such-command" in line.text for line in await read_all(launcher, spec.container_id))

    async def test_environment(self, world: World, launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AGENT_SECRET", "hunter2")
        text = "import json, os; print(json.dumps([dict(os.environ), os.getcwd()]))"
        env = {"DET_RUN_DIR": "{container_dir}/x", "A": "b=c\nd é", "EMPTY": ""}
        spec = world.code(text, env=env)
        await launcher.start(spec)
        await end_of(launcher, spec.container_id)
        seen, cwd = json.loads((await read_all(launcher, spec.container_id))[0].text)
        paths = launcher.container_paths(spec.container_id)
        assert seen.items() >= {"A": "b=c\nd é", "EMPTY": "", "DET_RUN_DIR": f"{paths.container_dir}/x"}.items()
        extra = set(seen) - set(env)
        own = {"PATH", "HOME", "LANG", "LC_CTYPE", "DET_CONTAINER_DIR", "HOSTNAME", "DET_SKIP_PIP_INSTALL"}
        assert {name for name in extra if not name.startswith(world.variables)} <= own
        assert cwd == paths.work_dir

    async def test_run_and_work_folders_are_there(self, world: World, launcher: Launcher) -> None:
        spec = world.code("import sys; [open(p + '/file', 'w') for p in sys.argv[1:]]; print('ok')")
        paths = launcher.container_paths(spec.container_id)
        spec = ContainerSpec(
            spec.container_id, [*spec.argv, paths.run_dir, paths.work_dir], {}, image=world.image, workdir="/tmp"
        )
        await launcher.start(spec)
        await end_of(launcher, spec.container_id)
        assert [line.text for line in await read_all(launcher, spec.container_id)] == ["ok"]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"container_id": "../x"}, "container id '../x'"),
            ({"argv": []}, "argv is empty"),
            ({"env": {"A=B": "c"}}, "environment variable 'A=B'"),
            ({"env": {"A": "\0"}}, "environment variable 'A'"),
        ],
    )
    async def test_refused(self, world: World, launcher: Launcher, change: dict[str, Any], words: str) -> None:
        fields: dict[str, Any] = {"container_id": "x", "argv": ["true"], "env": {}, "image": world.image, **change}
        with pytest.raises(LaunchError, match=words) as caught:
            await launcher.start(ContainerSpec(**fields))
        assert caught.value.reason == "bad_spec"


class ShowsStacks:
    """Of launchers that reach their programs themselves: a pod's first process does it otherwise."""

    async def test_stacks_of_a_program_that_hangs_are_in_its_log(self, world: World, launcher: Launcher) -> None:
        text = """
        import faulthandler, signal, threading
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        def stands_still(): threading.Event().wait(60)
        threading.Thread(target=stands_still, daemon=True).start()
        print("ready", flush=True)
        stands_still()
        """
        spec = world.code(text)
        await launcher.start(spec)
        await line_from(launcher, spec.container_id, "ready")
        await launcher.show_stacks(spec.container_id)
        await launcher.kill(spec.container_id, 0.3)
        assert (await end_of(launcher, spec.container_id)).cause is ExitCause.KILLED
        lines = [line.text for line in await read_all(launcher, spec.container_id)]
        assert sum(line.endswith(" in stands_still") for line in lines) == 2, lines
        await launcher.show_stacks(spec.container_id)  # of one that has ended, nothing


class TestProcessLauncher(ShowsStacks, LauncherContract):
    @pytest.fixture
    async def world(self, tmp_path: Path) -> AsyncIterator[ProcessWorld]:
        (tmp_path / "shared").mkdir()
        async with cleaned(ProcessWorld(tmp_path / "shared", tmp_path / "root")) as world:
            yield world

    def state(self, world: ProcessWorld, spec: ContainerSpec) -> dict[str, Any]:
        return json.loads((world.root / spec.container_id / "state.json").read_text())

    async def test_files_are_private(self, world: ProcessWorld, launcher: Launcher) -> None:
        spec = world.spec("true", env={"SECRET": "x"})
        await launcher.start(spec)
        await end_of(launcher, spec.container_id)
        for name in ("spec.json", "launch", "log", "state.json", "exit.json"):
            assert (world.root / spec.container_id / name).stat().st_mode & 0o777 == 0o600, name

    async def test_started_once_after_a_crash_before_the_spawn(self, world: ProcessWorld) -> None:
        spec = world.spec("echo", "ran")
        with pytest.raises(LaunchError, match="did not start it") as caught:
            await ProcessLauncher(world.root, python="false").start(spec)
        assert caught.value.reason == "start_failed"
        launcher = world.launcher()
        assert list(await launcher.list()) == []
        assert (await end_of(launcher, spec.container_id)).cause is ExitCause.LOST
        await asyncio.gather(*(world.launcher().start(spec) for _ in range(3)))
        assert (await end_of(launcher, spec.container_id)).code == 0
        assert [line.text for line in await read_all(launcher, spec.container_id)] == ["ran"]

    async def test_removed_when_a_crash_left_it_unstarted(self, world: ProcessWorld, launcher: Launcher) -> None:
        spec = world.spec("echo", "ran", labels={"trial": "7"}, env={"TOKEN": "secret"})
        with pytest.raises(LaunchError, match="did not start it"):
            await ProcessLauncher(world.root, python="false").start(spec)
        assert await launcher.unstarted() == [], "it may be about to start"
        record = world.root / spec.container_id / "spec.json"
        os.utime(record, (time.time() - 100, time.time() - 100))
        assert [(left.container_id, left.labels) for left in await launcher.unstarted()] == [
            (spec.container_id, {"trial": "7"})
        ]
        await launcher.remove(spec.container_id)
        assert await launcher.unstarted() == []
        assert list(world.root.iterdir()) == []

    async def test_killed_supervisor(self, world: ProcessWorld, launcher: Launcher) -> None:
        """The command lives on, can be waited for and killed; its exit code is nobody's to know."""
        specs = [world.spec("sleep", "60"), world.spec("sleep", "0.5")]
        for spec in specs:
            await launcher.start(spec)
            os.kill(self.state(world, spec)["supervisor"], signal.SIGKILL)
        assert await launcher.wait(specs[0].container_id, 0.1) is None
        assert [status.running for status in await launcher.list()] == [True, True]
        await launcher.kill(specs[0].container_id, 5.0)
        found = await end_of(world.launcher(), specs[0].container_id)
        assert (found.cause, found.code) == (ExitCause.KILLED, 137)
        lost = await end_of(launcher, specs[1].container_id)
        assert (lost.cause, lost.code) == (ExitCause.LOST, None)
        assert await end_of(world.launcher(), specs[1].container_id) == lost

    async def test_lost_when_the_host_was_restarted(self, world: ProcessWorld, launcher: Launcher) -> None:
        spec = world.spec("sleep", "60")
        await launcher.start(spec)
        state = self.state(world, spec)
        path = world.root / spec.container_id / "state.json"
        path.write_text(json.dumps({**state, "boot_id": "another"}))
        found = await end_of(launcher, spec.container_id)
        assert (found.cause, found.code) == (ExitCause.LOST, None)
        assert "restarted" in found.message
        os.killpg(state["pid"], signal.SIGKILL)

    async def test_reused_process_id_is_not_mistaken(self, world: ProcessWorld, launcher: Launcher) -> None:
        spec = world.spec("sleep", "60")
        await launcher.start(spec)
        state = self.state(world, spec)
        os.kill(state["supervisor"], signal.SIGKILL)
        os.kill(state["pid"], signal.SIGKILL)
        await asyncio.sleep(0.05)  # start times have a resolution of 10 ms
        stranger = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
        path = world.root / spec.container_id / "state.json"
        path.write_text(json.dumps({**state, "pid": stranger.pid, "supervisor": stranger.pid}))
        await launcher.kill(spec.container_id, 0.1)
        assert (await end_of(launcher, spec.container_id)).cause is ExitCause.LOST
        assert stranger.returncode is None
        stranger.kill()
        await stranger.wait()

    async def test_log_is_bounded(self, world: ProcessWorld) -> None:
        launcher = ProcessLauncher(world.root, log_limit_bytes=10_000)
        spec = world.code("for i in range(10000): print('x' * 100)")
        await launcher.start(spec)
        assert (await end_of(launcher, spec.container_id)).code == 0
        lines = await read_all(launcher, spec.container_id)
        assert (world.root / spec.container_id / "log").stat().st_size < 10_200
        assert "limit of 10000 bytes" in lines[-1].text

    async def test_log_is_read_again_only_when_it_has_grown(
        self, world: ProcessWorld, launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate = tmp_path / "gate"
        text = f"""
        import os, time
        print("a")
        print("b", flush=True)
        while not os.path.exists({str(gate)!r}): time.sleep(0.02)
        print("c")
        """
        spec = world.code(text)
        await launcher.start(spec)
        await line_from(launcher, spec.container_id, "b")
        a, b = await launcher.logs(spec.container_id, -1)
        with monkeypatch.context() as patch:
            patch.setattr("activities.launchers.process._read_log", None)
            assert await launcher.logs(spec.container_id, b.offset) == ()
            with pytest.raises(TypeError):
                await launcher.logs(spec.container_id, a.offset)
        gate.touch()
        await end_of(launcher, spec.container_id)
        assert [line.text for line in await read_all(launcher, spec.container_id, b.offset)] == ["c"]
        assert [line.text for line in await read_all(launcher, spec.container_id)] == ["a", "b", "c"]

    async def test_no_missing_exit_when_many_end_at_once(self, world: ProcessWorld, launcher: Launcher) -> None:
        specs = [world.spec("sh", "-c", f"echo {i}; exit {i}") for i in range(40)]
        await asyncio.gather(*(launcher.start(spec) for spec in specs))
        ends = await asyncio.gather(*(end_of(launcher, spec.container_id) for spec in specs))
        assert [end.code for end in ends] == list(range(40))

    async def test_waiting_costs_nothing(self, world: ProcessWorld, launcher: Launcher) -> None:
        spec = world.spec("sleep", "60")
        await launcher.start(spec)
        state = self.state(world, spec)

        def ticks_used() -> float:
            fields = Path(f"/proc/{state['supervisor']}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + time.thread_time()

        before = ticks_used()
        assert await launcher.wait(spec.container_id, 1.0) is None
        assert ticks_used() - before < 0.05

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
    async def test_other_user(self, world: ProcessWorld, launcher: Launcher) -> None:
        for parent in world.root.parents:
            if parent.stat().st_uid == 0 and parent.stat().st_mode & 0o001 == 0:
                parent.chmod(parent.stat().st_mode | 0o001)
        spec = world.spec("sh", "-c", "id -u; id -g; touch file && echo ok", user="65534:65534")
        await launcher.start(spec)
        assert (await end_of(launcher, spec.container_id)).code == 0
        assert [line.text for line in await read_all(launcher, spec.container_id)] == ["65534", "65534", "ok"]
        with pytest.raises(LaunchError, match="user 'no such'"):
            await launcher.start(world.spec("true", user="no such"))

    async def test_unwritable_root(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(LaunchError, match="root") as caught:
            await ProcessLauncher(tmp_path / "file" / "root").check()
        assert caught.value.reason == "engine_unavailable"


@pytest.fixture(scope="session")
def image() -> Generator[str]:
    with docker_engine():
        yield trial_image()


@pytest.mark.docker
class TestDockerLauncher(ShowsStacks, LauncherContract):
    @pytest.fixture
    async def world(self, tmp_path: Path, image: str) -> AsyncIterator[DockerWorld]:
        async with cleaned(DockerWorld(tmp_path, image)) as world:
            yield world

    async def test_image_that_went_after_it_was_prepared(self, world: DockerWorld, launcher: Launcher) -> None:
        spec = ContainerSpec(f"test-{uuid.uuid4()}", ["true"], {}, image="undeterred/none:dev")
        with pytest.raises(LaunchError, match="undeterred/none:dev") as caught:
            await launcher.start(spec)
        assert caught.value.reason == "image_missing"
        assert [*await launcher.list(), *await launcher.unstarted()] == []

    async def test_memory_limit(self, world: DockerWorld, launcher: Launcher) -> None:
        text = "print('ready', flush=True); x = [bytearray(1 << 20) for _ in range(1000)]"
        spec = world.code(text, memory_bytes=64 << 20)
        await launcher.start(spec)
        found = await end_of(launcher, spec.container_id)
        assert (found.cause, found.code) == (ExitCause.OUT_OF_MEMORY, 137)
        assert "over its limit of 64 MiB" in found.message

    async def test_limits_and_rights(self, world: DockerWorld, launcher: Launcher) -> None:
        text = """
        import os, re
        status = open("/proc/self/status").read()
        print(re.search(r"CapEff:\\s*(\\w+)", status)[1], re.search(r"NoNewPrivs:\\s*(\\d)", status)[1])
        print(os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize)
        print(os.path.exists("/var/run/docker.sock"), os.getpid() == 1)
        """
        spec = world.code(text, shm_bytes=32 << 20)
        await launcher.start(spec)
        await end_of(launcher, spec.container_id)
        lines = [line.text for line in await read_all(launcher, spec.container_id)]
        assert lines == ["00000000000000eb 1", str(32 << 20), "False False"]

    async def test_capabilities_and_shared_memory_of_the_configuration(
        self, world: DockerWorld, launcher: Launcher
    ) -> None:
        text = """
        import os, re
        print(re.search(r"CapEff:\\s*(\\w+)", open("/proc/self/status").read())[1])
        print(os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize)
        """
        spec = world.code(text, add_capabilities=["SYS_PTRACE"], drop_capabilities=["ALL"])
        await launcher.start(spec)
        await end_of(launcher, spec.container_id)
        lines = [line.text for line in await read_all(launcher, spec.container_id)]
        assert lines == [f"{1 << 19:016x}", str(4 << 30)], "CAP_SYS_PTRACE is number 19"

    async def test_no_more_processes_than_the_host_gives(self, world: DockerWorld) -> None:
        launcher = DockerLauncher(world.agent, network="undeterred-test", pids_limit=20)
        text = """
        import os, time
        children = 0
        try:
            while children < 100:
                if not os.fork():
                    time.sleep(60)
                children += 1
        except BlockingIOError:
            print(15 < children < 20)
        """
        spec = world.code(text)
        await launcher.start(spec)
        await end_of(launcher, spec.container_id)
        assert [line.text for line in await read_all(launcher, spec.container_id)] == ["True"]
        await launcher.close()

    async def test_device_of_the_host(self, world: DockerWorld, launcher: Launcher) -> None:
        device = HostDevice(Path("/dev/null"), "/dev/nothing", "rw")
        spec = world.code("print(open('/dev/nothing', 'rb').read(1))", devices=[device])
        await launcher.start(spec)
        await end_of(launcher, spec.container_id)
        assert [line.text for line in await read_all(launcher, spec.container_id)] == ["b''"]
        missing = world.spec("true", devices=[HostDevice(Path("/dev/no-such"), "/dev/x")])
        with pytest.raises(LaunchError, match=r"/dev/no-such.*resources\.devices") as caught:
            await launcher.start(missing)
        assert caught.value.reason == "bad_spec"
        assert [*await launcher.unstarted()] == [], "what could not be started is not left"

    async def test_disk_limit_is_kept_or_refused_when_the_agent_starts(self, world: DockerWorld) -> None:
        launcher = DockerLauncher(world.agent, network="undeterred-test", disk_bytes=50 << 20)
        info = subprocess.run(["docker", "info"], check=True, capture_output=True, text=True).stdout  # noqa: ASYNC221
        if "Backing Filesystem: xfs" in info:
            await launcher.check()
            spec = world.code("open('x', 'wb').write(bytes(60 << 20))")
            await launcher.start(spec)
            assert (await end_of(launcher, spec.container_id)).code == 1
        else:
            with pytest.raises(LaunchError, match=r"UNDETERRED_DISK_MIB: .*pquota"):
                await launcher.check()
            with pytest.raises(LaunchError, match="the engine refused it"):
                await launcher.start(world.spec("true"))
        await launcher.close()

    async def test_trials_do_not_reach_each_other(self, world: DockerWorld, launcher: Launcher) -> None:
        serve = """
        import socket, time
        server = socket.create_server(("0.0.0.0", 8000))
        print(socket.gethostbyname(socket.gethostname()), flush=True)
        time.sleep(60)
        """
        first = world.code(serve)
        await launcher.start(first)
        await line_from(launcher, first.container_id, ".")
        address = (await launcher.logs(first.container_id, -1))[0].text
        reach = """
        import socket, sys
        try:
            socket.create_connection((sys.argv[1], 8000), timeout=1)
            print("reached")
        except OSError as error:
            print("not reached")
        """
        for network, words in (("undeterred-test", "not reached"), ("undeterred-test-open", "not reached")):
            other = DockerLauncher(world.agent, network=network, inter_container=True)
            second = world.code(reach, address)
            await other.start(second)
            await end_of(other, second.container_id)
            assert [line.text for line in await read_all(other, second.container_id)] == [words], network
            await other.close()
        itself = DockerLauncher(world.agent, network="undeterred-test-open", inter_container=True)
        server = world.code(serve)
        await itself.start(server)
        await line_from(itself, server.container_id, ".")
        address = (await itself.logs(server.container_id, -1))[0].text
        client = world.code(reach, address)
        await itself.start(client)
        await end_of(itself, client.container_id)
        assert [line.text for line in await read_all(itself, client.container_id)] == ["reached"], "where they may"
        await itself.close()

    async def test_reaches_a_server_of_the_host(self, world: DockerWorld, launcher: Launcher) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"hello")

            def log_message(self, format: str, *args: object) -> None:
                return

        with http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://host.docker.internal:{server.server_address[1]}"
            spec = world.code("import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=5).read())", url)
            await launcher.start(spec)
            await end_of(launcher, spec.container_id)
            server.shutdown()
        assert [line.text for line in await read_all(launcher, spec.container_id)] == ["b'hello'"]

    async def test_other_user(self, world: DockerWorld, launcher: Launcher) -> None:
        script = "id -u; id -g; touch file $DET_RUN_DIR/x && echo ok"
        spec = world.spec("sh", "-c", script, user="1234:5678", env={"DET_RUN_DIR": "{container_dir}"})
        await launcher.start(spec)
        await end_of(launcher, spec.container_id)
        assert [line.text for line in await read_all(launcher, spec.container_id)] == ["1234", "5678", "ok"]

    async def test_started_when_a_crash_left_it_created(self, world: DockerWorld, launcher: Launcher) -> None:
        spec = world.spec("echo", "ran")
        assert isinstance(launcher, DockerLauncher)
        old = dataclasses.replace(spec, argv=["echo", "with the old token"], labels={"trial": "7"})
        await launcher._create(launcher._name(spec.container_id), old)  # pyright: ignore[reportPrivateUsage]
        assert list(await launcher.list()) == []
        other = world.launcher()
        [left] = await other.unstarted()
        assert (left.container_id, left.running, left.labels) == (spec.container_id, False, {"trial": "7"})
        await other.start(spec)
        assert await other.unstarted() == []
        assert (await end_of(other, spec.container_id)).code == 0
        assert [line.text for line in await read_all(other, spec.container_id)] == ["ran"]

    async def test_removed_when_a_crash_left_it_created(self, world: DockerWorld, launcher: Launcher) -> None:
        spec = world.spec("true")
        assert isinstance(launcher, DockerLauncher)
        await launcher._create(launcher._name(spec.container_id), spec)  # pyright: ignore[reportPrivateUsage]
        stranger = DockerLauncher(f"agent-{uuid.uuid4()}", network="undeterred-test")
        assert await stranger.unstarted() == []
        await stranger.remove(spec.container_id)
        assert len(await launcher.unstarted()) == 1, "what is another's is left alone"
        await stranger.close()
        await launcher.remove(spec.container_id)
        assert await launcher.unstarted() == []

    async def test_user_that_the_image_does_not_know_has_a_name_and_a_home(
        self, world: DockerWorld, launcher: Launcher
    ) -> None:
        """PyTorch, for one, names its cache folder after the user."""
        show = '_name_user(); import getpass; print(getpass.getuser(), os.path.expanduser("~"))'
        program = Path(entry.__file__).read_text().replace("main(sys.argv[1], sys.argv[2:])", show)
        for user, expected in (("1234:5678", "1234 /run/determined/workdir"), ("", "root /root")):
            spec = world.spec("python3", "-c", program, user=user)
            await launcher.start(spec)
            await end_of(launcher, spec.container_id)
            assert [line.text for line in await read_all(launcher, spec.container_id)] == [expected]

    async def test_files_on_a_mount_belong_to_whom_it_runs_as(self, world: DockerWorld, launcher: Launcher) -> None:
        mounts, folder = world.shared_folder()
        world.shared.chmod(0o777)
        for parent in world.shared.parents:
            if parent.stat().st_uid == os.geteuid() and parent.stat().st_mode & 0o001 == 0:
                parent.chmod(parent.stat().st_mode | 0o001)
        spec = world.spec("touch", f"{folder}/file", user="1234:5678", mounts=mounts)
        await launcher.start(spec)
        assert (await end_of(launcher, spec.container_id)).code == 0
        found = (world.shared / "file").stat()
        assert (found.st_uid, found.st_gid) == (1234, 5678)

    async def test_agents_of_two_clusters_share_an_engine(self, world: DockerWorld, launcher: Launcher) -> None:
        """Even with the same ids: experiments of the same second and number have the same."""
        spec = world.spec("sh", "-c", "echo ours; sleep 60")
        await launcher.start(spec)
        stranger = DockerLauncher(f"agent-{uuid.uuid4()}", network="undeterred-test")
        assert list(await stranger.list()) == []
        await stranger.start(dataclasses.replace(spec, argv=["echo", "theirs"]))
        assert (await end_of(stranger, spec.container_id)).code == 0
        assert [line.text for line in await read_all(stranger, spec.container_id)] == ["theirs"]
        await stranger.remove(spec.container_id)
        await stranger.close()
        (status,) = await launcher.list()
        assert status.running

    async def test_missing_mount(self, world: DockerWorld, launcher: Launcher, tmp_path: Path) -> None:
        with pytest.raises(LaunchError, match="nowhere") as caught:
            await launcher.start(world.spec("true", mounts=[Mount(tmp_path / "nowhere", "/x")]))
        assert caught.value.reason == "bad_spec"

    async def test_engine_that_does_not_answer(self, tmp_path: Path) -> None:
        launcher = DockerLauncher("a", host=f"unix://{tmp_path}/none.sock")
        for call in (launcher.check(), launcher.start(ContainerSpec("x", ["true"], {})), launcher.list()):
            with pytest.raises(LaunchError, match="does not answer") as caught:
                await call
            assert caught.value.reason == "engine_unavailable"
        assert await launcher.wait("x", 0.3) is None  # no answer is no end
        await launcher.close()
