"""`python -m bench [NAME …]`: measure and print; without names all that needs no more than this machine.

Each writes its part of docs/benchmarks.md.
"""

from __future__ import annotations

import datetime
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bench import (
    clients,
    cluster,
    contexts,
    cores,
    creating,
    endpoints,
    flame,
    hosts,
    importing,
    interactive,
    killed_rank,
    kubernetes,
    kubernetes_scale,
    lifecycle,
    pages,
    partitions,
    peers,
    proxy,
    reports,
    restore,
    rolling,
    scale,
    scheduling,
    search,
    searchers,
    space,
    storage,
    trainer,
    training_loop,
    web,
    wire,
)
from bench.measure import HEADER, Figure, load

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"

BENCHES: dict[str, Callable[[], Iterator[Figure]]] = {
    "clients": clients.figures,
    "loop": training_loop.figures,
    "trainer": trainer.figures,
    "killed": killed_rank.figures,
    "reports": reports.figures,
    "rolling": rolling.figures,
    "wire": wire.figures,
    "endpoints": endpoints.figures,
    "creating": creating.figures,
    "contexts": contexts.figures,
    "storage": storage.figures,
    "space": space.figures,
    "searchers": searchers.figures,
    "scheduling": scheduling.figures,
    "search": search.figures,
    "lifecycle": lifecycle.figures,
    "proxy": proxy.figures,
    "interactive": interactive.figures,
    "interactive_docker": interactive.figures_in_docker,
    "web": web.figures,
    "pages": pages.figures,
    "pages_sqlite": pages.figures_on_sqlite,
    "hosts": hosts.figures,
    "restore": restore.figures,
    "partitions": partitions.figures,
    "importing": importing.figures,
    "scale": scale.figures,
    "cluster": lambda: cluster.figures("process"),
    "docker": lambda: _in_docker(),
    "peers": peers.figures,
}
#: By name only: they want a cluster, a GPU, more cores than two, or a program that draws.
ELSEWHERE: dict[str, Callable[[], Iterator[Figure]]] = {
    "cores": cores.figures,
    "flame": flame.figures,
    "gpu": trainer.figures_on_a_gpu,
    "kubernetes": kubernetes.figures,
    "kubernetes_scale": kubernetes_scale.figures,
}


def _in_docker() -> Iterator[Figure]:
    from tests.kit.servers import docker_engine, trial_image

    with docker_engine():
        trial_image()
        yield from cluster.figures("docker")


def main() -> int:
    """Run the named benches, or all, and write their part of the page; returns 1 if a goal is missed."""
    names = sys.argv[1:] or list(BENCHES)
    benches = BENCHES | ELSEWHERE
    unknown = [name for name in names if name not in benches]
    if unknown:
        print(f"no bench {unknown[0]!r}: there are {', '.join(benches)}", file=sys.stderr)
        return 2
    sections = _sections(PAGE.read_text()) if PAGE.exists() else {}
    missed = 0
    print(HEADER, flush=True)
    for name in names:
        before, rows = load(), list[str]()
        for figure in benches[name]():
            rows.append(figure.row())
            missed += figure.is_met is False
            print(rows[-1], flush=True)
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        rows.append(f"| *bench `{name}` on {today}: {before} before, {load()} after* | | | | | | | |")
        sections[name] = rows
    PAGE.write_text(_page(sections))
    print(f"written to {PAGE.name}")
    return 1 if missed else 0


def _sections(page: str) -> dict[str, list[str]]:
    """The rows of each bench that the page has: they end with the one that names the bench."""
    sections: dict[str, list[str]] = {}
    rows: list[str] = []
    for line in page.partition(HEADER)[2].strip().splitlines():
        rows.append(line)
        if found := re.match(r"\| \*bench `(\w+)`", line):
            sections[found[1]], rows = rows, []
    return sections


def _page(sections: dict[str, list[str]]) -> str:
    all_rows = [row for name in BENCHES | ELSEWHERE for row in sections.get(name, ())]
    rows, missed = "\n".join(all_rows), "\n".join(map(_said, filter(_is_missed, all_rows)))
    lost = "\n".join(_lost(sections.get("peers", ())))
    return f"""# Benchmarks

`make bench` makes this page; it was made on {platform.system()} {platform.machine()} with Python {platform.python_version()}.
One part alone: `.venv/bin/python -m bench clients` (or {", ".join(f"`{name}`" for name in list(BENCHES)[1:])}), which leaves
the others as they were. The column of Determined 0.38.1 was measured by its user on a machine like this, built from
source, with Docker and PostgreSQL.

Each figure is taken after a warm-up that is not counted. Load is the one-minute average: above 2 on two cores, others
were using the machine too.

## What misses its goal

{missed or "Nothing."}

## What is slower than what users would pick instead

{lost or "Nothing."}

What stands in `peers` is measured one after the other on the same machine; the notes there say what the others do not do.

## All figures

{HEADER}
{rows}
"""


def _lost(rows: Iterable[str]) -> Iterator[str]:
    """Of rows of `peers`, in which ours come first: those of others that are better, as lines of a list."""
    ours: dict[str, str] = {}
    latest = ""
    for row in rows:
        what, median = (row.split("|")[place].strip() for place in (1, 4))
        of, _, other = what.rpartition(", ")
        if of == "peers: the same":
            of = latest
        mine = [name for name in ours if name.startswith(of)] if of else []
        if not mine or other.endswith(("connection", "connections")):
            ours[what], latest = median, what
            continue
        best = ours[mine[-1]]
        theirs, own = float(median.split()[0]), float(best.split()[0])
        if (theirs > own) if median.endswith("/s") else (theirs < own):
            yield f"- {mine[-1].removeprefix('peers: ')}: {best}; {other}: {median}"


def _is_missed(row: str) -> bool:
    return "| **no** |" in row


def _said(row: str) -> str:
    """A row that misses its goal, as a line of a list."""
    what, _, goal, median = (cell.strip() for cell in row.split("|")[1:5])
    return f"- {what}: {median}, where the goal is {goal}"


if __name__ == "__main__":
    sys.exit(main())
