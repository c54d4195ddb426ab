"""Trials in containers whose image has the published client inside: the image needs no change."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator

import pytest

from activities.launchers.docker import DockerLauncher
from tests.compat.proxy import recording
from tests.compat.published import GENERATIONS, PASSWORD, Published, environment_of
from tests.compat.record import WORKS, Record
from tests.compat.test_core_api import pause_and_resume
from tests.kit.embedded import Embedded
from tests.kit.servers import REPOSITORY, docker_engine


@pytest.fixture(scope="module")
def engine() -> Iterator[None]:
    with docker_engine():
        yield


def image_of(generation: str) -> str:
    """An image with Python, the published client and nothing of ours."""
    tag = f"undeterred/published:{generation}"
    script = REPOSITORY / "deploy" / "images" / "build-local.sh"
    subprocess.run([script, "-d", "-t", tag, "-e", environment_of(generation)], check=True, stdout=subprocess.DEVNULL)
    return tag


async def _gateway() -> str:
    launcher = DockerLauncher("probe")
    try:
        return await launcher.gateway()
    finally:
        await launcher.close()


@pytest.fixture(scope="module", params=GENERATIONS)
def in_docker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, record: Record, engine: None
) -> Iterator[Published]:
    folder = tmp_path_factory.mktemp("compat-docker")
    cluster = Embedded(folder, launcher="docker", environment={"UNDETERRED_ADMIN_PASSWORD": PASSWORD})
    port = int(cluster.environment["UNDETERRED_PORT"])
    gateway = asyncio.run(_gateway())
    with recording(record, port) as proxy, recording(record, port, gateway) as for_containers:
        proxy.generation = for_containers.generation = request.param
        cluster.environment["UNDETERRED_CONTAINER_API_URL"] = for_containers.url
        with (
            cluster.started(),
            contextlib.closing(Published(request.param, cluster, proxy, record, folder)) as client,
        ):
            client.det("user", "login", "admin", stdin=f"{PASSWORD}\n")
            yield client


@pytest.mark.docker
def test_trial_in_a_container_is_paused_and_resumes(in_docker: Published) -> None:
    searcher = {"name": "single", "metric": "accuracy", "smaller_is_better": False, "max_length": 20}
    environment = {"image": image_of(in_docker.generation)}
    experiment = in_docker.create(hyperparameters={"sleep": 0.1}, searcher=searcher, environment=environment)
    pause_and_resume(in_docker, experiment)
    in_docker.record.program(in_docker.generation, "Docker: pause, resume from the checkpoint, complete", WORKS)
