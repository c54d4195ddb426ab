"""The embedded Temporal server is started without reading all of its program."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.kit.servers import temporal_server
from workers.processes import holder_of_port
from workers.temporal_server import find_or_get, unhashed


def test_server_does_not_hash_the_program_that_it_was_started_from(tmp_path: Path) -> None:
    program = find_or_get(print)
    for _ in range(2):  # also where it was started before
        with temporal_server(tmp_path) as address:
            holder = holder_of_port(int(address.rpartition(":")[2]))
            (pid,) = re.findall(r"^temporal \(pid (\d+)\)$", holder)
            (read,) = re.findall(r"rchar: (\d+)", Path(f"/proc/{pid}/io").read_text())
        is_one_disk = program.stat().st_dev == tmp_path.stat().st_dev
        assert (int(read) < program.stat().st_size / 4) is is_one_disk
        assert not is_one_disk or (tmp_path / "temporal").stat().st_size < 1000


def test_program_itself_is_started_where_it_has_no_second_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nexec temporal\n")
    with unhashed(script, tmp_path) as file:
        assert file == script, "its interpreter reads it by its name"
    program = find_or_get(print)
    for folder in (tmp_path / "missing", program.parent):
        with unhashed(program, folder) as file:
            assert file == program
    assert program.stat().st_size > 1_000_000
    monkeypatch.setattr(os, "access", lambda *_: False)
    with unhashed(program, tmp_path) as file:
        assert file == program, "nothing may be executed there"
