"""Which commands of providers are run, with what, and what is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from activities.autoscaler import NodePrograms
from workflows.messages import ProviderCall


async def run(folder: Path | None, command: str) -> str:
    call = ProviderCall(pool="elastic", node_id="elastic-1", command=command, slots=8)
    return (await ActivityEnvironment().run(NodePrograms(folder).run_provider, call)).problem


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (
        ("up", f'env > {tmp_path}/env; echo "$@" > {tmp_path}/words'),
        ("fail", "echo no room >&2; exit 3"),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "outside").write_text("#!/bin/sh\n")
    (tmp_path / "outside").chmod(0o755)
    return programs


async def test_program_is_told_pool_node_and_slots_and_no_secret_of_ours(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNDETERRED_DATABASE_URL", "postgresql://user:secret@host/db")
    assert await run(folder, "up --zone 'a b' $HOME;ls") == ""
    told = (tmp_path / "env").read_text()
    for line in ("UNDETERRED_POOL=elastic", "UNDETERRED_NODE=elastic-1", "UNDETERRED_SLOTS=8"):
        assert line in told.splitlines()
    assert "secret" not in told
    assert (tmp_path / "words").read_text() == "--zone a b $HOME;ls\n", "no shell reads it"


async def test_failure_is_told_with_what_the_program_said(folder: Path) -> None:
    assert await run(folder, "fail now") == "'fail now' exited with 3: no room"


@pytest.mark.parametrize("command", ["../outside", "/bin/true", "true", "..", "'up"])
async def test_nothing_but_programs_of_the_folder_is_run(folder: Path, command: str) -> None:
    assert await run(folder, command) != ""


async def test_nothing_is_run_where_the_operator_named_no_folder() -> None:
    assert "UNDETERRED_PROVIDER_FOLDER is not set" in await run(None, "up")
