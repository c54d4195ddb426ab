"""Where the processor time of a trial goes: a flame graph of the four parts of the control plane, drawn for the docs.

py-spy samples who holds the lock of Python's interpreter in API, orchestrator and agent, perf the Go of Temporal's dev
server; inferno draws what they saw. Both samplers cost time themselves, so the sum is more than the bench `hosts` measures.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.hosts import client, config_of, create, spent_by, state_of, up
from bench.measure import Figure
from tests.kit.embedded import PARTS, Embedded
from tests.kit.servers import perf_program

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "time-of-a-trial.svg"

_TRIALS = int(os.environ.get("BENCH_TRIALS", "200"))
_HZ = 199  # a prime number: what the parts do each 10 or 100 ms is neither always met nor always missed
_NATIVE = "outside of Python: Temporal's SDK in Rust, SQLite, the system"
#: What runs the loop of events: asyncio's own, and uvloop.
_LOOPS = ("BaseEventLoop._run_once (base_events.py)", "Runner.run (runners.py)")
Stacks = Counter[str]
"""Microseconds of each stack, whose frames are parted by semicolons, the outermost first."""


def figures() -> Iterator[Figure]:
    """One row a part; draws `PICTURE` from the same samples."""
    renderer = shutil.which("inferno-flamegraph")
    if renderer is None:
        raise SystemExit("inferno-flamegraph draws the picture, and is not on PATH: `cargo install inferno`")
    with tempfile.TemporaryDirectory() as folder, up(slots=32) as cluster:
        _search(cluster)  # what is done once is done
        stacks = {part: _of_a_trial(part, found) for part, found in _sampled(cluster, Path(folder)).items()}
    lines = "\n".join(f"{stack} {round(spent)}" for found in stacks.values() for stack, spent in found.items())
    title = f"Processor time of a trial, of {_TRIALS} with an empty process, 32 at once"
    drawn = subprocess.run(
        [renderer, "--title", title, "--countname", "µs", "--width", "1400", "--minwidth", "0.4", "--hash"],
        input=lines, capture_output=True, text=True, check=True,
    )  # fmt: skip
    PICTURE.write_text(drawn.stdout)
    for part, found in stacks.items():
        shares = Counter[str]()
        for stack, spent in found.items():
            shares[stack.rpartition(";")[2]] += spent
        note = ", ".join(f"{name} {spent / 1000:.2g}" for name, spent in shares.most_common(5))
        yield Figure(f"processor time of a trial, sampled: {part}", [found.total() / 1000], "ms", note=note)


def _search(cluster: Embedded) -> None:
    with client(cluster) as http:
        experiment_id = create(http, config_of(_TRIALS, 32, "true"))
        cluster.until(lambda: state_of(http, experiment_id) == "STATE_COMPLETED", 300, "all have run", every_s=0.5)


def _sampled(cluster: Embedded, folder: Path) -> dict[str, Stacks]:
    """Run a search while each part is looked at."""
    perf = [perf_program(), "record", "--freq", str(_HZ), "-g", "--output", str(folder / "temporal")]
    spy = [str(Path(sys.executable).with_name("py-spy")), "record", "--gil", "--function"]
    spy += ["--format", "raw", "--rate", str(_HZ), "--duration", "3600"]
    samplers: list[subprocess.Popen[bytes]] = []
    for part in PARTS:
        line = perf if part == "temporal" else [*spy, "--output", str(folder / part)]
        own = [*line, "--pid", str(cluster.pid(part))]
        samplers.append(subprocess.Popen(own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    time.sleep(2)
    before = spent_by(cluster)
    _search(cluster)
    spent = spent_by(cluster) - before
    for sampler in samplers:
        sampler.send_signal(signal.SIGINT)
    for sampler in samplers:
        sampler.wait(60)
    found = {part: _of_py_spy(folder / part) for part in PARTS if part != "temporal"}
    for part, stacks in found.items():
        seen, used = stacks.total(), spent[part] * 1e6
        if seen > used:  # who holds the lock may wait for a core: a machine that does other things as well shows that
            for stack in stacks:
                stacks[stack] *= used / seen
        stacks[_NATIVE] += max(0.0, used - seen)
    return {"temporal": _of_perf(folder / "temporal"), **found}


def _of_a_trial(part: str, stacks: Stacks) -> Stacks:
    return Counter({f"{part};{stack}": spent / _TRIALS for stack, spent in stacks.items()})


def _of_py_spy(file: Path) -> Stacks:
    """A line a stack. What the loop of events was started by is left out, and so are folders and lines of code."""
    stacks = Stacks()
    for line in file.read_text().splitlines():
        stack, _, samples = line.rpartition(" ")
        names = [re.sub(r" \((?:.*/)?([^/():]+)(:\d+)?\)$", r" (\1)", frame) for frame in stack.split(";")]
        begin = next((names.index(loop) for loop in _LOOPS if loop in names), 0)
        stacks[";".join(names[begin:])] += int(samples) * 1e6 / _HZ
    return stacks


def _of_perf(file: Path) -> Stacks:
    """Each sample is a block: a line that names the thread, then a line a frame, the innermost first."""
    line = [perf_program(), "script", "--input", str(file), "--fields", "comm,ip,sym"]
    text = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    stacks = Stacks()
    for block in text.split("\n\n"):
        frames = [frame.strip().partition(" ")[2].strip() for frame in block.strip().splitlines()[1:]]
        if frames:
            names = (name.rpartition("/")[2].replace(";", ",").replace(" ", "") or "?" for name in reversed(frames))
            stacks[";".join(names)] += 1e6 / _HZ
    return stacks
