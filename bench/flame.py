"""`python -m bench.flame`: where the processor time of a trial goes, as a picture: docs/trial-cost.svg.

A search of empty processes runs on a cluster of its own while py-spy samples API, orchestrator and agent. A box is as
wide as its share of the processor time of a trial; what it calls is below it. Libraries are one box each, and so is
Temporal's server, which is no Python.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

import psutil

from bench.hosts import run_empty, up
from tests.kit.embedded import PARTS, Embedded

_PICTURE = Path(__file__).resolve().parent.parent / "docs" / "trial-cost.svg"
_ROOTS = ("api", "activities", "workflows", "workers", "database")
_TRIALS, _SAMPLES_A_S = 200, 200
_WIDTH, _ROW, _LEAST, _DEEPEST = 1200, 18, 0.004, 12
_COLORS = {"api": "#9ecae1", "orchestrator": "#a1d99b", "agent": "#fdae6b", "temporal": "#bcbddc"}


@dataclass
class _Box:
    """Milliseconds of processor time a trial, with all that is called."""

    ms: float = 0.0
    inner: dict[str, _Box] = field(default_factory=dict[str, "_Box"])

    def add(self, names: list[str], ms: float) -> None:
        self.ms += ms
        if names:
            self.inner.setdefault(names[0], _Box()).add(names[1:], ms)


def main() -> int:
    """Measure and draw."""
    with up(slots=32) as cluster:
        run_empty(cluster, _TRIALS)  # warm
        whole = _sampled(cluster)
    _PICTURE.write_text("\n".join(_drawn(whole)) + "\n")
    for part, box in whole.inner.items():
        print(f"{part}: {box.ms:.1f} ms a trial")
    print(f"written to {_PICTURE.name}")
    return 0


def _sampled(cluster: Embedded) -> _Box:
    with tempfile.TemporaryDirectory() as folder:
        spies = {part: _spy(cluster.pid(part), Path(folder) / part) for part in PARTS if part != "temporal"}
        time.sleep(2)
        before = {part: _spent(cluster, part) for part in PARTS}
        run_empty(cluster, _TRIALS)
        spent = {part: (_spent(cluster, part) - before[part]) * 1000 / _TRIALS for part in PARTS}
        for spy in spies.values():
            spy.send_signal(signal.SIGINT)
            spy.wait()
        whole = _Box()
        whole.add(["temporal"], spent["temporal"])
        for part in spies:
            stacks = list(_stacks((Path(folder) / part).read_text()))
            total = sum(count for _, count in stacks)
            for names, count in stacks:
                whole.add([part, *names], spent[part] * count / total)
    return whole


def _spy(pid: int, path: Path) -> subprocess.Popen[bytes]:
    command = ["py-spy", "record", "--rate", str(_SAMPLES_A_S), "--format", "raw", "--output", str(path), "--pid"]
    where = Path(sys.executable).parent / command[0]
    return subprocess.Popen([str(where), *command[1:], str(pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _spent(cluster: Embedded, part: str) -> float:
    return sum(psutil.Process(cluster.pid(part)).cpu_times()[:2])


def _stacks(raw: str) -> Iterator[tuple[list[str], int]]:
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        names: list[str] = []
        for frame in stack.split(";"):
            name = _name(frame)
            if name and name not in names[-2:]:
                names.append(name)
        yield names[:_DEEPEST], int(count)


def _name(frame: str) -> str:
    """Of a function of ours, or of the library that has it; "" for what only calls others."""
    function, _, place = frame.partition(" (")
    path = place.rpartition(":")[0]
    if "/site-packages/" in path or not path.startswith(_ROOTS):
        top = path.rpartition("site-packages/")[2].partition("/")[0].removesuffix(".py")
        is_frame = top in ("asyncio", "threading", "runpy", "concurrent", "anyio", "uvicorn", "starlette", "fastapi")
        return "" if is_frame or top.startswith("<") else f"[{top}]"
    module = path.removesuffix(".py").replace("/", ".")
    return "" if module in ("workers.connect", "workers.embedded") else f"{module}.{function}"


def _drawn(whole: _Box) -> Iterator[str]:
    height = (_DEEPEST + 3) * _ROW
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="11">'
    yield f"<title>Processor time of a trial: {whole.ms:.0f} ms</title>"
    yield f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>'
    left = 0.0
    for part, box in sorted(whole.inner.items(), key=lambda item: -item[1].ms):
        yield from _boxes(part, box, left, 0, whole.ms, _COLORS[part])
        left += box.ms
    yield "</svg>"


def _boxes(name: str, box: _Box, left: float, depth: int, total: float, color: str) -> Iterator[str]:
    scale = _WIDTH / total
    x, width, y = left * scale, box.ms * scale, depth * _ROW
    label = f"{name} {box.ms:.1f} ms"
    yield (
        f'<g><title>{escape(label)}</title><rect x="{x:.1f}" y="{y}" width="{max(width - 0.5, 0.5):.1f}" '
        f'height="{_ROW - 1}" fill="{color}"/>'
    )
    room = int(width / 6.2)
    if room >= 5:
        shown = label if len(label) <= room else name.rpartition(".")[2]
        yield f'<text x="{x + 3:.1f}" y="{y + 13}">{escape(shown[:room])}</text>'
    yield "</g>"
    for inner, each in sorted(box.inner.items(), key=lambda item: -item[1].ms):
        if each.ms >= total * _LEAST and depth < _DEEPEST:
            yield from _boxes(inner, each, left, depth + 1, total, color)
        left += each.ms


if __name__ == "__main__":
    sys.exit(main())
