"""The file that keeps reports while the master is away: order, crashes, full disks."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from determined.core import _spool
from determined.core._spool import Spool, leftovers

if TYPE_CHECKING:
    from pathlib import Path

ENTRIES = [b'{"a":1}', b'{"b":"x\\ny"}', b"[1,2]", b"null"]


def die(spool: Spool) -> None:
    """What the end of a process does to its spool."""
    os.close(spool._fd)
    spool._fd = -1


def content(spool: Spool) -> bytes:
    return pathlib.Path(spool.path).read_bytes()


def drain(spool: Spool, limit: int = 3) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    while spool.waiting:
        kind, bodies = spool.read(limit, 1 << 20)
        assert bodies
        found += [(kind, body) for body in bodies]
        spool.advance(len(bodies))
    return found


def test_nothing_is_on_disk_until_something_has_to_wait(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "a" / "b"))
    spool.close()
    assert list(tmp_path.iterdir()) == []
    assert leftovers(str(tmp_path / "a" / "b")) == []


def test_the_file_is_private_and_goes_when_all_is_delivered(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"))
    spool.append("metrics", ENTRIES)
    assert stat.S_IMODE(os.stat(spool.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "spool").st_mode) == 0o700
    assert [json.loads(line)[0] for line in content(spool).splitlines()] == ["spool", *["metrics"] * 4]
    assert drain(spool) == [("metrics", body) for body in ENTRIES]
    assert content(spool) == b'["spool",1]\n', "an outage of weeks must not fill the disk with what is done"
    spool.append("ack", [b"null"])
    assert drain(spool) == [("ack", b"null")]
    spool.close()
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_batch_is_of_one_kind_and_of_limited_size(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    spool.append("metrics", [b"1" * 100] * 5)
    spool.append("ack", [b"null"])
    spool.append("metrics", [b"2"])
    sizes = []
    while spool.waiting:
        kind, bodies = spool.read(10, 250)
        sizes.append((kind, len(bodies)))
        spool.advance(len(bodies))
    assert sizes == [("metrics", 2), ("metrics", 2), ("metrics", 1), ("ack", 1), ("metrics", 1)]
    spool.append("metrics", [b"3" * 1000])
    assert spool.read(10, 250) == ("metrics", [b"3" * 1000]), "one that is over the limit goes alone"


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["metrics", "ack"]), st.lists(st.text(max_size=20), min_size=1, max_size=5)),
            st.integers(1, 7),  # so many are delivered
            st.none(),  # the process dies, and another takes its spool up
        ),
        max_size=30,
    )
)
def test_what_is_delivered_is_what_was_put_in(tmp_path_factory: pytest.TempPathFactory, steps: list[object]) -> None:
    folder = str(tmp_path_factory.mktemp("spool"))
    spool = Spool(folder)
    put: list[tuple[str, bytes]] = []
    got: list[tuple[str, bytes]] = []
    for step in steps:
        if isinstance(step, tuple):
            kind, texts = step
            bodies = [json.dumps(text).encode() for text in texts]
            spool.append(kind, bodies)
            put += [(kind, body) for body in bodies]
        elif isinstance(step, int) and spool.waiting:
            kind, bodies = spool.read(step, 1 << 20)
            spool.advance(len(bodies))
            got += [(kind, body) for body in bodies]
        elif step is None and spool._fd >= 0:
            waiting = spool.waiting
            die(spool)
            found = leftovers(folder)
            assert [other.waiting for other in found] == ([waiting] if waiting else [])
            spool = found[0] if found else Spool(folder)
    got += drain(spool)
    assert got == put
    spool.close()


def test_half_written_lines_do_not_count_wherever_the_process_was_killed(tmp_path: Path) -> None:
    whole = Spool(str(tmp_path / "whole"))
    whole.append("metrics", ENTRIES)
    whole.advance(1)
    whole.append("metrics", [b'{"last":1}'])
    data = content(whole)
    lines = data.splitlines(keepends=True)
    for size in range(len(data) + 1):
        folder = tmp_path / f"cut{size}"
        folder.mkdir()
        (folder / "1-1.spool").write_bytes(data[:size])
        complete = data[:size].count(b"\n")
        expected = [line for line in lines[:complete] if line.startswith(b'["metrics"')]
        if any(line.startswith(b'["done"') for line in lines[:complete]):
            expected = expected[1:]
        found = leftovers(str(folder))
        assert [body for spool in found for _, body in drain(spool)] == [line[11:-2] for line in expected]
        for spool in found:
            spool.append("metrics", [b'"after"'])
            assert drain(spool) == [("metrics", b'"after"')]
            spool.close()
        assert list(folder.iterdir()) == []
    whole.close()


def test_a_live_process_keeps_its_spool(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    spool.append("metrics", ENTRIES)
    assert leftovers(str(tmp_path)) == []
    assert os.path.exists(spool.path)
    die(spool)
    (other,) = leftovers(str(tmp_path))
    assert leftovers(str(tmp_path)) == [], "it has another owner now"
    assert drain(other) == [("metrics", body) for body in ENTRIES]
    other.close()


def test_leftovers_come_in_the_order_of_their_processes(tmp_path: Path) -> None:
    for number in (b"1", b"2", b"3"):
        spool = Spool(str(tmp_path))
        spool.append("metrics", [number])
        die(spool)
    found = leftovers(str(tmp_path))
    assert [body for spool in found for _, body in drain(spool)] == [b"1", b"2", b"3"]
    for spool in found:
        spool.close()


def test_garbage_is_left_out(tmp_path: Path) -> None:
    good = b'["metrics",{"ok":1}]\n'
    bad = [b"\n", b"\0" * 50 + b"\n", b'["metrics",{"cut":\n', b"[]\n", b'["done",x]\n', b'"\xff"\n']
    (tmp_path / "1.spool").write_bytes(b'["spool",1]\n' + good + b"".join(bad) + good)
    (tmp_path / "2.spool").write_bytes(b'["spool",1]\n' + good + b'["done",99]\n')
    (tmp_path / "notes.txt").write_text("something else")
    found = leftovers(str(tmp_path))
    assert [drain(spool) for spool in found] == [[("metrics", b'{"ok":1}')] * 2], "all of the second is delivered"
    found[0].close()
    assert sorted(os.listdir(tmp_path)) == ["notes.txt"]


def test_a_killed_process_leaves_all_that_it_had_appended(tmp_path: Path) -> None:
    script = """
import sys
from determined.core._spool import Spool
spool = Spool(sys.argv[1])
for number in range(1_000_000):
    spool.append("metrics", [b"%d" % number])
    print(number, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(500):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    told = 499 + len(process.stdout.read().splitlines())
    process.wait()
    process.stdout.close()
    (spool,) = leftovers(str(tmp_path))
    numbers = [int(body) for _, body in drain(spool, 100)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= told
    spool.close()


def test_a_full_disk_takes_all_of_an_append_or_nothing(tmp_path: Path) -> None:
    """RLIMIT_FSIZE cuts a write off in its middle, as a full disk does."""
    script = """
import json, resource, sys
from determined.core._spool import Spool
spool = Spool(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
taken = 0
try:
    while True:
        spool.append("metrics", [b'"%0100d"' % taken])
        taken += 1
except OSError as e:
    print(e.strerror)
size = len(open(spool.path, "rb").read())
kind, bodies = spool.read(100, 1 << 20)
spool.advance(2)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
spool.append("ack", [b"null"])
print(json.dumps([taken, size, len(bodies), spool.waiting]))
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said, numbers = done.stdout.splitlines()
    assert said == "File too large"
    taken, size, read, waiting = json.loads(numbers)
    assert (taken, read, waiting) == (8, 8, 7)
    assert size == len(b'["spool",1]\n') + 8 * len(b'["metrics","%0100d"]\n' % 0)
    (spool,) = leftovers(str(tmp_path))
    kinds = [kind for kind, _ in drain(spool)]
    assert kinds[-1] == "ack"
    assert 7 <= len(kinds) <= 9, "that two were delivered may have found no room: then they come again"
    spool.close()


def test_what_a_full_disk_does_not_give_back_is_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(str(tmp_path))
    spool.append("metrics", [b"1"])
    write, truncate = os.write, os.ftruncate

    def cut_off(fd: int, data: bytes) -> int:
        write(fd, data[:9])
        monkeypatch.setattr(os, "write", broken)
        return 9

    def broken(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", cut_off)
    monkeypatch.setattr(os, "ftruncate", broken)
    with pytest.raises(OSError, match="No space left"):
        spool.append("metrics", [b"2"])
    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "ftruncate", truncate)
    assert content(spool).endswith(b'["metrics')
    spool.append("metrics", [b"3"])
    assert spool.waiting == 2
    die(spool)
    (again,) = leftovers(str(tmp_path))
    assert drain(again) == [("metrics", b"1"), ("metrics", b"3")]
    again.close()


def test_a_folder_that_cannot_be_made_is_an_error_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spool = Spool(str(tmp_path / "file" / "spool"))
    for _ in range(2):
        with pytest.raises(OSError):
            spool.append("metrics", [b"1"])
    assert spool.waiting == 0
    spool.close()


def test_a_spool_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spool, "LIMIT_BYTES", 200)
    spool = Spool(str(tmp_path))
    spool.append("metrics", [b"1" * 100])
    with pytest.raises(OSError, match="reached its limit"):
        spool.append("metrics", [b"1" * 100])
    assert len(drain(spool)) == 1
    spool.append("metrics", [b"1" * 100])
    spool.clear()
    spool.close()
