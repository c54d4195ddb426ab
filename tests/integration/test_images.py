"""Images from a real registry into a real engine: who gets them, what is said meanwhile, and what is wrong with them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import pytest

from activities.launchers.base import ContainerSpec, ExitCause, LaunchError
from activities.launchers.docker import DockerLauncher
from determined.common import outgoing
from determined.common.outgoing import Outgoing
from tests.kit.registries import PASSWORD, USER, Registry, docker_login, load_image, noise, registry
from tests.kit.servers import REPOSITORY, docker_engine

pytestmark = pytest.mark.docker
LOGIN = {"username": USER, "password": PASSWORD}
LIMIT_S = 30.0
#: The head of a program for IBM's mainframes, and no more of it.
MAINFRAME = b"\x7fELF\x02\x02\x01" + bytes(9) + b"\x00\x02\x00\x16" + bytes(44)


@pytest.fixture(scope="module")
def private() -> Generator[Registry]:
    with docker_engine(), registry(asks_for_login=True) as found:
        yield found
        names = _engine("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", f"{found.address}/*/*").split()
        if names:
            _engine("image", "rm", "-f", *names)


@pytest.fixture(autouse=True)
def no_login_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


@pytest.fixture(autouse=True)
def registries_of_this_host() -> Generator[None]:
    before = outgoing.site()
    outgoing.configure(Outgoing.of("127.0.0.0/8,::1/128"))
    yield
    outgoing.configure(before)


@pytest.fixture
async def launcher(private: Registry) -> AsyncIterator[DockerLauncher]:
    launcher = DockerLauncher(f"agent-{uuid.uuid4()}", network="undeterred-test")
    try:
        yield launcher
    finally:
        private.rate_bytes_s = None
        for status in (*await launcher.list(), *await launcher.unstarted()):
            await launcher.remove(status.container_id)
        await launcher.close()


def spec(image: str, **more: Any) -> ContainerSpec:
    return ContainerSpec(f"test-{uuid.uuid4()}", more.pop("argv", ["python3", "-c", "1"]), {}, image=image, **more)


def _engine(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout


def pushed(private: Registry, **more: Any) -> str:
    """A new image of little that nobody has."""
    return private.push(f"team/{uuid.uuid4()}:1", noise(2000), **more)


async def refusal(launcher: DockerLauncher, wanted: ContainerSpec) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        await launcher.prepare(wanted, lambda text: None)
    assert wanted.image in str(caught.value)
    assert PASSWORD not in str(caught.value)
    return caught.value


async def test_pulled_with_the_login_of_the_configuration(private: Registry, launcher: DockerLauncher) -> None:
    image = pushed(private)
    said: list[str] = []
    await launcher.prepare(spec(image, registry_login=LOGIN), said.append)
    assert said[0] == f"pulling image {image}"
    assert said[-1].startswith(f"pulled image {image} in ")
    assert PASSWORD not in str(said)
    said.clear()
    await launcher.prepare(spec(image), said.append)
    assert said == [], "it is here, and nobody is asked"


@pytest.mark.parametrize("address", ["", "http://{}/v2/"])
async def test_pulled_with_a_login_in_one_word(private: Registry, launcher: DockerLauncher, address: str) -> None:
    login = {"auth": "YWRhOmxvdmVsYWNl", "serveraddress": address.format(private.address)}
    await launcher.prepare(spec(pushed(private), registry_login=login), lambda text: None)


async def test_pulled_with_the_login_of_the_host(private: Registry, launcher: DockerLauncher, tmp_path: Path) -> None:
    image = pushed(private)
    assert (await refusal(launcher, spec(image))).reason == "image_denied"
    docker_login(tmp_path / "docker", private.address)
    await launcher.prepare(spec(image), lambda text: None)


@pytest.mark.parametrize(
    "login",
    [{"username": USER, "password": "wrong"}, {"auth": "YWRhOndyb25n"}, {**LOGIN, "serveraddress": "r.example.org"}],
)
async def test_denied(private: Registry, launcher: DockerLauncher, login: dict[str, str]) -> None:
    said: list[str] = []
    with pytest.raises(LaunchError, match=r"`environment\.registry_auth`") as caught:
        await launcher.prepare(spec(pushed(private), registry_login=login), said.append)
    assert caught.value.reason == "image_denied"
    if "serveraddress" in login:
        assert "is for r.example.org, not for" in said[0], "a login goes to the registry that it is for"


async def test_images_that_can_not_be_had(private: Registry, launcher: DockerLauncher) -> None:
    there = pushed(private)
    for image, reason in (
        (there.replace(":1", ":2").replace(private.address.replace(":1", ":2"), private.address), "image_missing"),
        (f"{private.address}/team/none:1", "image_missing"),
        ("localhost:1/none:1", "registry_unavailable"),
        ("Not An Image", "bad_spec"),
        ("undeterred/none:dev", "image_missing"),
    ):
        assert (await refusal(launcher, spec(image, registry_login=LOGIN))).reason == reason, image
    with pytest.raises(LaunchError, match=r"build-local\.sh -t undeterred/none:dev"):
        await launcher.prepare(spec("undeterred/none:dev", pulls_always=True), lambda text: None)
    assert [*await launcher.list(), *await launcher.unstarted()] == []


async def test_pulled_again_only_when_told_to(private: Registry, launcher: DockerLauncher) -> None:
    image = pushed(private)
    wanted = spec(image, registry_login=LOGIN)
    await launcher.prepare(wanted, lambda text: None)
    old = _engine("image", "inspect", "-f", "{{.Id}}", image)
    private.push(image.removeprefix(f"{private.address}/"), noise(3000))
    said: list[str] = []
    await launcher.prepare(wanted, said.append)
    assert (said, _engine("image", "inspect", "-f", "{{.Id}}", image)) == ([], old)
    always = dataclasses.replace(wanted, pulls_always=True)
    await launcher.prepare(always, said.append)
    assert said[-1].startswith(f"pulled image {image}")
    assert _engine("image", "inspect", "-f", "{{.Id}}", image) != old
    await launcher.prepare(always, said.append)
    assert said[-1].startswith(f"image {image} is up to date")
    _engine("image", "rm", "-f", old.strip())


async def test_architecture(private: Registry, launcher: DockerLauncher) -> None:
    other = "s390x"
    single, listed = pushed(private, architecture=other), pushed(private, architecture=other, is_list=True)
    local = f"{private.address}/team/loaded:1"
    load_image(local, noise(100), architecture=other)
    for image, words in ((single, "is for s390x"), (listed, "not built for this host"), (local, "is for s390x")):
        error = await refusal(launcher, spec(image, registry_login=LOGIN))
        assert error.reason == "wrong_architecture", str(error)
        assert words in str(error)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"readme": b"nothing"}, "has no python3 that can be executed (No such file or directory)"),
        (dict.fromkeys(["usr/bin/python3", "bin/sh"], MAINFRAME), "its python3 is for another architecture"),
        ({"usr/bin/python3/readme": b""}, "has no python3 that can be executed (Permission denied)"),
    ],
)
async def test_image_without_its_first_program(
    private: Registry, launcher: DockerLauncher, files: dict[str, bytes], words: str
) -> None:
    image = f"{private.address}/team/{uuid.uuid4()}:1"
    load_image(image, files)
    wanted = spec(image)
    await launcher.prepare(wanted, lambda text: None)
    await launcher.start(wanted)
    found = await launcher.wait(wanted.container_id, LIMIT_S)
    assert found is not None
    assert found.cause is ExitCause.NO_PROGRAM
    assert words in found.message
    assert image in found.message
    assert await launcher.wait(wanted.container_id, 0) == found, "the same, whenever it is asked"

    launcher._use_init = False  # pyright: ignore[reportPrivateUsage] - as where the engine was installed without it
    again = dataclasses.replace(wanted, container_id=f"{wanted.container_id}-2")
    if "architecture" in words:  # runc is past its own start when it finds out
        await launcher.start(again)
        found = await launcher.wait(again.container_id, LIMIT_S)
        assert found is not None
        assert found.cause is ExitCause.NO_PROGRAM
        assert "is for another architecture" in found.message
        return
    with pytest.raises(LaunchError, match=image) as caught:
        await launcher.start(again)
    assert caught.value.reason == "no_program"
    assert [*await launcher.unstarted()] == []


async def test_progress_is_told_now_and_again(
    private: Registry, launcher: DockerLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.launchers.images._FIRST_WORD_S", 0.3)
    image = private.push(f"team/{uuid.uuid4()}:1", noise(6_000_000))
    private.rate_bytes_s = 3_000_000
    said: list[str] = []
    await launcher.prepare(spec(image, registry_login=LOGIN), said.append)
    assert said[0] == f"pulling image {image}"
    assert 2 <= len(said[1:-1]) <= 6, f"longer and longer pauses: {said}"
    shares = [int(line.split()[-5]) for line in said[1:-1] if "%" in line]
    assert shares == sorted(set(shares))
    assert all(line.endswith(" % of 6 MB") for line in said[1:-1] if "%" in line)
    assert said[-1].endswith("(6 MB)")


async def test_one_pull_for_many_and_another_when_the_first_is_cancelled(
    private: Registry, launcher: DockerLauncher
) -> None:
    image = private.push(f"team/{uuid.uuid4()}:1", noise(3_000_000))
    private.rate_bytes_s = 300_000
    said: dict[str, list[str]] = {"first": [], "second": [], "third": []}
    wanted = spec(image, registry_login=LOGIN)
    pulls: dict[str, asyncio.Task[None]] = {}
    for name, lines in said.items():
        pulls[name] = asyncio.create_task(launcher.prepare(wanted, lines.append))
        async with asyncio.timeout(LIMIT_S):
            while not lines:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.02)
    waits = [f"waiting for image {image}, which another trial of this host is pulling"]
    assert [said[name] for name in said] == [[f"pulling image {image}"], waits, waits]
    began = time.monotonic()
    pulls["first"].cancel()
    await asyncio.wait(pulls.values(), timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert pulls["first"].cancelled()
    assert time.monotonic() - began < 1
    private.rate_bytes_s = None
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(pulls["second"], pulls["third"])
    assert said["second"][1] == f"pulling image {image}"
    assert said["third"] == waits, "it found the image of the second"


async def test_nothing_is_left_when_the_agent_dies_over_a_pull(private: Registry, launcher: DockerLauncher) -> None:
    image = private.push(f"team/{uuid.uuid4()}:1", noise(3_000_000))
    private.rate_bytes_s = 200_000
    agent = f"""
import asyncio
from activities.launchers.base import ContainerSpec
from activities.launchers.docker import DockerLauncher
from determined.common import outgoing
outgoing.configure(outgoing.Outgoing.of("127.0.0.0/8,::1/128"))
launcher = DockerLauncher({launcher._owner!r}, network="undeterred-test")
spec = ContainerSpec("x", ["true"], {{}}, image={image!r}, registry_login={LOGIN!r})
asyncio.run(launcher.prepare(spec, lambda text: print(text, flush=True)))
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", agent, cwd=REPOSITORY, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == f"pulling image {image}\n".encode()
    await asyncio.sleep(1.0)  # some of it is here
    os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    assert [*await launcher.list(), *await launcher.unstarted()] == []
    assert _engine("image", "ls", "-q", image) == ""
    private.rate_bytes_s = None
    async with asyncio.timeout(LIMIT_S):
        await launcher.prepare(spec(image, registry_login=LOGIN), lambda text: None)
    with contextlib.suppress(subprocess.CalledProcessError):
        _engine("image", "rm", "-f", image)
