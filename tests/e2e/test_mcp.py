"""`det mcp`, driven by the SDK's own client as a coding agent does: one that fails is found out about and mended.

All tests share one cluster.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import types
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from tests.kit.embedded import Embedded
from tests.kit.patience import PATIENCE
from tests.kit.scripts import TRAIN
from tests.kit.servers import free_port

CONFIG = """
name: {name}
entrypoint: python3 train.py
hyperparameters: {{quality: 0.5, sleep: {sleep}}}
searcher: {{name: single, metric: accuracy, smaller_is_better: false, max_length: {{batches: {length}}}}}
max_restarts: 0
"""
READS = {"experiments", "trials", "pools", "queue", "experiment", "why", "curve", "metrics", "log", "compare", "plan", "watch",
         "campaigns"}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with Embedded(tmp_path_factory.mktemp("mcp")).started() as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def agent(cluster: Embedded, *options: str, agrees: bool | None = None) -> AsyncGenerator[Client]:
    """A client that starts `det mcp` as agents do. `agrees`: what its person says; None: there is none to ask."""

    async def asked(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"yes": bool(agrees)})

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "cli", "mcp", *options], env=dict(cluster.environment)
    )
    who = types.Implementation(name="tests <b>", version="1.0")
    ask = None if agrees is None else asked
    async with Client(server, client_info=who, elicitation_callback=ask, read_timeout_seconds=60 * PATIENCE) as client:
        yield client


async def said(client: Client, tool: str, **arguments: Any) -> str:
    """What a tool answers."""
    answer = await client.call_tool(tool, arguments)
    text = "".join(part.text for part in answer.content if isinstance(part, types.TextContent))
    assert not answer.is_error, text
    return text


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """What a tool says when it does not do it."""
    answer = await client.call_tool(tool, arguments)
    text = "".join(part.text for part in answer.content if isinstance(part, types.TextContent))
    assert answer.is_error, text
    assert "Traceback" not in text
    return text


def config(name: str, *, sleep: float = 0, length: int = 3) -> str:
    return CONFIG.format(name=name, sleep=sleep, length=length)


async def test_agent_finds_out_why_an_experiment_fails_and_mends_it(cluster: Embedded) -> None:
    broken = TRAIN.replace("import ", "import no_such_module\nimport ", 1)
    async with agent(cluster, "--write") as client:
        plan = json.loads(await said(client, "plan", config=config("mended")))
        assert plan["trials"] == [{"count": 1, "length": 3}]
        first = {"config": config("broken"), "files": {"train.py": broken}, "idempotency_key": "k-1"}
        number = json.loads(await said(client, "launch", **first))["experiment_id"]
        again = json.loads(await said(client, "launch", **first))
        assert again["replayed"] is True, "the same launch is made once"
        other = {**first, "files": {"train.py": TRAIN}}
        assert "already used" in await refused(client, "launch", **other)
        ended = json.loads(await said(client, "watch", experiment_id=number, seconds=60))
        assert (ended["state"], ended["has_ended"]) == ("ERROR", True)
        prompt = await client.get_prompt("find_out_why_it_fails", {"experiment_id": str(number)})
        assert f"experiment {number}" in str(prompt.messages[0].content)
        (trial,) = json.loads(await said(client, "trials", experiment_id=number))
        assert "exited with code 1" in await said(client, "why", kind="trial", id=str(trial["id"]))
        assert "no_such_module" in await said(client, "log", trial_id=trial["id"], search="no_such")
        code = await client.read_resource(f"experiment://{number}/code/train.py")
        assert "no_such_module" in str(code.contents[0])
        assert "train.py" in str((await client.read_resource(f"experiment://{number}/files")).contents[0])
        await said(client, "note", experiment_id=number, text="an import that is not there")

        dry = {"config": config("mended"), "files": {"train.py": TRAIN}, "idempotency_key": "k-2"}
        digest = json.loads(await said(client, "launch", **dry, dry_run=True))["requestDigest"]
        changed = {**dry, "files": {"train.py": TRAIN + "\n"}, "expected_digest": digest}
        assert "plan_changed" in await refused(client, "launch", **changed)
        mended = json.loads(await said(client, "launch", **dry, expected_digest=digest))["experiment_id"]
        ended = json.loads(await said(client, "watch", experiment_id=mended, seconds=60))
        assert ended["state"] == "COMPLETED"
        differs = json.loads(await said(client, "compare", experiment_ids=[number, mended]))["differs"]
        assert differs["name"] == ["broken", "mended"]
        (good,) = json.loads(await said(client, "trials", experiment_id=mended))
        curve = json.loads(await said(client, "curve", trial_ids=[good["id"]], metric="validation.accuracy"))
        assert [step for step, _ in curve["steps and values by trial"][str(good["id"])]] == [1, 2, 3]
        assert "accuracy" in json.loads(await said(client, "metrics", trial_id=good["id"]))["validation"]
        campaign = cluster.folder / "campaign.yaml"
        campaign.write_text(
            "name: c\nparams: {n: 1}\nsteps: {a: {task: {entrypoint: 'true', resources: {slots: 0}}}}\n"
        )
        assert cluster.det("campaign", "create", str(campaign)).returncode == 0
        begun = {"campaign_id": 1, "idempotency_key": "run-1", "params": {"n": 2}}
        numbers = [json.loads(await said(client, "run_campaign", **begun))["number"] for _ in "ab"]
        assert numbers == [1, 1], "once for its key"
        assert json.loads(await said(client, "campaigns"))[0]["name"] == "c"
        one = json.loads(await said(client, "campaigns", campaign_id=1))
        assert (one["run"]["params"], one["run"]["steps"][0]["name"]) == ({"n": 2}, "a")
        listed = json.loads(await said(client, "experiments", name="mended"))
        assert [each["id"] for each in listed] == [mended]
    audit = cluster.det("audit", "list", "--json").stdout
    assert "admin by agent tests b 1.0" in audit


async def test_without_write_there_are_only_tools_that_read(cluster: Embedded) -> None:
    async with agent(cluster) as client:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == READS
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
        assert "not found" in await refused(client, "experiment", experiment_id=99999)
        assert "expected either trial_id or task_id" in await refused(client, "log")
        for arguments in ({"experiment_id": 0}, {"experiment_id": "x/../../me"}, {"experiment_id": 2**40}):
            await refused(client, "experiment", **arguments)
        for path in ("1/../../users", "..", ""):
            await refused(client, "why", kind="trial", id=path)
        await refused(client, "curve", trial_ids=list(range(1, 50)), metric="validation.loss")


@pytest.mark.parametrize("agrees", [False, True])
async def test_what_destroys_asks_the_person_first(cluster: Embedded, agrees: bool) -> None:
    async with agent(cluster, "--write", agrees=agrees) as client:
        launch = {"config": config("long", sleep=1, length=1000), "files": {"train.py": TRAIN}}
        answer = await said(client, "launch", **launch, idempotency_key=f"long-{agrees}")
        number = json.loads(answer)["experiment_id"]
        if agrees:
            assert await said(client, "end", experiment_id=number, how="kill") == "kill: done"
            ended = json.loads(await said(client, "watch", experiment_id=number, seconds=30))
            assert ended["state"] == "CANCELED"
        else:
            assert "did not agree" in await refused(client, "end", experiment_id=number, how="kill")
            assert json.loads(await said(client, "experiment", experiment_id=number))["state"] != "CANCELED"
    if not agrees:
        async with agent(cluster, "--write") as alone:  # an agent without a person to ask
            with pytest.raises(Exception, match=r"(?i)elicitation"):
                await alone.call_tool("end", {"experiment_id": number, "how": "kill"})
        assert cluster.det("experiment", "kill", str(number)).returncode == 0


async def test_by_http_each_request_has_the_rights_of_its_token(cluster: Embedded) -> None:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    made = cluster.det("token", "create", "admin", "--scope", "read-only", "--json")
    assert made.returncode == 0, made.stderr
    token = json.loads(made.stdout)["token"]
    port = free_port()
    command = [sys.executable, "-m", "cli", "mcp", "--write", "--http", f"127.0.0.1:{port}"]
    environment = {key: value for key, value in cluster.environment.items() if not key.startswith("DET_USER")}
    server = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        address = f"http://127.0.0.1:{port}/mcp"
        _until_it_listens(port)
        async with Client(address) as nobody:
            assert "Authorization: Bearer" in await refused(nobody, "pools")
        for given, works in ((token, True), ("v4.public.forged", False)):
            async with (
                httpx2.AsyncClient(headers={"Authorization": f"Bearer {given}"}, timeout=60) as http,
                Client(streamable_http_client(address, http_client=http)) as client,
            ):
                if not works:
                    await refused(client, "pools")
                    continue
                assert json.loads(await said(client, "pools"))[0]["name"] == "default"
                answer = await refused(client, "note", experiment_id=1, text="x")
                assert "read-only" in answer
        foreign = httpx2.post(address, json={}, headers={"Host": "evil.example", "Accept": "application/json"})
        assert foreign.status_code in (403, 421), "a page of another name can't reach it"
    finally:
        server.terminate()
        server.wait()


def _until_it_listens(port: int) -> None:
    import socket

    deadline = time.monotonic() + 30 * PATIENCE
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("address", ["8765", "host:", ":1", "host:99999", "host:x"])
def test_address_is_checked(address: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cli", "mcp", "--http", address], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "expected HOST:PORT" in done.stderr
