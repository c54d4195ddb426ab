"""The contract of launchers, held against pods of a real kubelet, and what is particular to a cluster."""

from __future__ import annotations

import asyncio
import dataclasses
import http.server
import os
import threading
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from activities.launchers.base import ContainerSpec, ExitCause, Launcher, LaunchError, Mount
from activities.launchers.kubernetes.manifest import PodSettings
from activities.launchers.kubernetes.nodes import Nodes
from tests.integration.test_launchers import LauncherContract, World, cleaned, end_of, read_all
from tests.kubernetes.images import TRIAL_IMAGE
from tests.kubernetes.machine import BRIDGE

pytestmark = pytest.mark.long


class KubernetesWorld(World):
    """A namespace's worth of pods, of an agent of its own."""

    imports = """
from activities.launchers.kubernetes.launcher import KubernetesLauncher
from activities.launchers.kubernetes.manifest import PodSettings
from activities.launchers.kubernetes.schedulers import GangScheduler
"""
    image = TRIAL_IMAGE
    python = "python3"
    seen_within_s = 3.0  # a pod's times are whole seconds, and its kubelet looks once in a second
    tells_streams = False
    variables = ("KUBERNETES_", "JOB_COMPLETION_INDEX", "DET_KUBERNETES_")

    def __init__(self, shared: Path) -> None:
        super().__init__(shared)
        agent = f"agent-{uuid.uuid4().hex[:8]}"
        self.settings = PodSettings(agent, slot_resource="cpu", slot_cpu=0.05, slot_memory_mib=256)
        self.expression = f"KubernetesLauncher({self.settings!r}, kubeconfig={os.environ['KUBECONFIG']!r})"

    def shared_folder(self) -> tuple[Sequence[Mount], str]:
        return super().shared_folder()[0], "/shared"


class TestKubernetes(LauncherContract):
    @pytest.fixture
    async def world(self, tmp_path: Path) -> AsyncIterator[KubernetesWorld]:
        tmp_path.chmod(0o777)
        async with cleaned(KubernetesWorld(tmp_path)) as world:
            yield world

    async def test_files_of_the_run_folder_when_it_ended(self, world: World, launcher: Launcher) -> None:
        """Nobody but the pod reads its disk: there is nothing to hand out, whatever is asked for."""
        spec = world.code("import os; os.makedirs('/run/determined/spool'); open('/run/determined/spool/a', 'w')")
        await launcher.start(spec)
        await end_of(launcher, spec.container_id)
        found = await world.launcher().run_files(spec.container_id, "spool")
        assert found.files == []

    async def test_files_that_are_too_large_are_not_read(self, world: World, launcher: Launcher) -> None:
        """The same: a sparse file costs nobody anything."""
        spec = world.code(
            "import os; os.makedirs('/run/determined/spool'); open('/run/determined/spool/x', 'w').truncate(1 << 40)"
        )
        await launcher.start(spec)
        assert (await end_of(launcher, spec.container_id)).code == 0
        assert (await launcher.run_files(spec.container_id, "spool")).files == []

    async def test_what_waits_on_disk_is_delivered_before_the_pod_ends(self, world: World, launcher: Launcher) -> None:
        """The master is away twice, and then takes what a killed program had left."""
        with Master(failures=2) as master:
            text = """
            import os
            os.makedirs(os.environ["DET_SPOOL_DIR"])
            with open(os.environ["DET_SPOOL_DIR"] + "/1-1.spool", "w") as file:
                file.write('["spool",1]\\n["ack",null]\\n')
            os.kill(os.getpid(), 9)
            """
            env = {
                "DET_MASTER": master.url,
                "DET_ALLOCATION_ID": "a.1",
                "DET_SESSION_TOKEN": "secret",
                "DET_SPOOL_DIR": "/run/determined/spool",
            }
            spec = world.code(text, env=env)
            await launcher.start(spec)
            assert (await end_of(launcher, spec.container_id)).code == 137
        assert master.taken == ["/api/v1/allocations/a.1/signals/ack_preemption"]

    async def test_why_it_does_not_start(self, world: World, launcher: Launcher) -> None:
        """A pod that no node has room for says so, in the scheduler's words, and can be killed."""
        spec = dataclasses.replace(world.spec("true"), slot_ids=tuple(range(100_000)))
        await launcher.start(spec)
        said: list[str] = []
        waiting = asyncio.create_task(launcher.started(spec.container_id, said.append))
        async with asyncio.timeout(20):
            while not any("Insufficient cpu" in text for text in said):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert "Kubernetes has no node for it yet: 0/1 nodes are available" in said[-1]
        await launcher.kill(spec.container_id, 1.0)
        await waiting
        assert (await end_of(launcher, spec.container_id)).cause is ExitCause.KILLED

    async def test_image_that_nobody_has(self, world: World, launcher: Launcher) -> None:
        spec = dataclasses.replace(world.spec("true"), image="registry.invalid/none:1")
        await launcher.start(spec)
        with pytest.raises(LaunchError, match=r"registry\.invalid/none:1") as refused:
            await asyncio.wait_for(launcher.started(spec.container_id, lambda _: None), 60)
        assert refused.value.reason in ("image_missing", "registry_unavailable")

    async def test_gang_is_one_job_with_a_name_for_each(self, world: KubernetesWorld, launcher: Launcher) -> None:
        where = (os.environ["KUBECONFIG"], "", "")
        nodes = await Nodes.connect(world.settings, where, slots_per_pod=2, most=None)
        opening = asyncio.create_task(nodes.open_gangs(60.0))
        text = "import os, socket; print(os.environ['RANK'], socket.gethostname().rpartition('-')[2], os.getuid())"
        group = f"g{uuid.uuid4()}"
        specs = [
            dataclasses.replace(
                world.code(text, env={"RANK": str(rank), "SAME": "x"}),
                container_id=f"{group}-{rank}", group=group, rank=rank, group_size=2,
            )
            for rank in range(2)
        ]  # fmt: skip

        async def run(spec: ContainerSpec) -> list[str]:
            await launcher.prepare(spec, lambda _: None)
            await launcher.start(spec)
            await end_of(launcher, spec.container_id)
            return [line.text for line in await read_all(launcher, spec.container_id)]

        assert await asyncio.gather(*map(run, specs)) == [["0 0 1000"], ["1 1 1000"]]
        assert len({status.labels.get("x") for status in await launcher.list()}) == 1
        for spec in specs:
            await launcher.remove(spec.container_id)
        assert list(await launcher.list()) == []
        opening.cancel()
        await nodes.close()

    async def test_memory(self, world: World, launcher: Launcher) -> None:
        spec = world.code("x = bytearray(1 << 30); print(len(x)); x[::4096] = b'1' * len(x[::4096])")
        await launcher.start(spec)
        found = await end_of(launcher, spec.container_id)
        assert found.cause is ExitCause.OUT_OF_MEMORY
        assert "256Mi" in found.message


class Master:
    """An API that is away for the first requests, and then takes all."""

    def __init__(self, failures: int) -> None:
        self.taken: list[str] = []
        self._left = failures
        master = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(master.takes(self.path))
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

        self._server = http.server.ThreadingHTTPServer((BRIDGE, 0), Handler)
        self.url = f"http://{BRIDGE}:{self._server.server_address[1]}"

    def takes(self, path: str) -> int:
        """The status of the answer."""
        self._left -= 1
        if self._left >= 0:
            return 503
        self.taken.append(path)
        return 200

    def __enter__(self) -> Master:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
