"""Pages of the documentation as programs: their blocks are run in order, in one folder, as a reader would.

A block of ```sh is run by bash; of ```python by one interpreter for the whole page; one with a `title="…"` is written to
that file; one of ```diff makes a file out of another, which it names. A block of ```text after one that ran is what it
printed: each of its lines is looked for, in this order, `…` for anything.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^( *)```(\S*)(.*)$")
_TITLE = re.compile(r'title="([^"]+)"')
_LIMIT_S = 120
# Runs each file that it is given the name of, in one namespace, and says when it is done.
_INTERPRETER = """
import sys, traceback
space = {"__name__": "__main__"}
for line in sys.stdin:
    try:
        exec(compile(open(line.strip()).read(), line.strip(), "exec"), space)
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        print("=== failed", flush=True)
    else:
        print("=== done", flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block. `line`: where it begins, from 1."""

    line: int
    kind: str
    title: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    lines = iter(enumerate(page.read_text().splitlines(), 1))
    for number, line in lines:
        opening = _FENCE.match(line)
        if opening is None:
            continue
        indent, kind, rest = opening.groups()
        text: list[str] = []
        for _, inner in lines:
            if inner.strip() == "```":
                break
            text.append(inner.removeprefix(indent))
        title = _TITLE.search(rest)
        yield Block(number, kind, title[1] if title else "", "\n".join(text) + "\n")


def run_page(page: Path, folder: Path, environment: Mapping[str, str]) -> int:
    """Run a page in a folder; returns how many blocks ran. Raises: AssertionError, with the page, line and output."""
    interpreter: subprocess.Popen[str] | None = None
    printed = ""
    count = 0
    try:
        for block in blocks(page):
            where = f"{page.name}, line {block.line}"
            if block.title:
                (folder / block.title).write_text(block.text)
            elif block.kind == "diff":
                _change(block, folder, where)
            elif block.kind == "sh":
                command = ["bash", "-eu", "-c", block.text]
                done = subprocess.run(
                    command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
                )
                printed = done.stdout + done.stderr
                assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{printed}"
                count += 1
            elif block.kind == "python":
                if interpreter is None:
                    interpreter = subprocess.Popen(
                        [sys.executable, "-c", _INTERPRETER], cwd=folder, env=environment, text=True,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    )  # fmt: skip
                printed = _interpret(interpreter, block, folder)
                assert printed.endswith("=== done\n"), f"{where}:\n{printed}"
                count += 1
            elif block.kind == "text":
                _check_printed(block.text, printed, where)
    finally:
        if interpreter is not None:
            interpreter.kill()
            interpreter.communicate()
    return count


def _change(block: Block, folder: Path, where: str) -> None:
    """Apply a diff. Each part of it, between lines of `@@`, has enough lines around to be found without their numbers."""
    head, *parts = re.split(r"^@@.*\n", block.text, flags=re.MULTILINE)
    old, new = (line.split(maxsplit=1)[1] for line in head.splitlines())
    text = (folder / old).read_text()
    for part in parts:
        lines = part.splitlines(keepends=True)
        before, after = ("".join(line[1:] or "\n" for line in lines if line[0] in kept) for kept in (" -\n", " +\n"))
        assert text.count(before) == 1, f"{where}: {old} does not have once:\n{before}"
        text = text.replace(before, after)
    (folder / new).write_text(text)


def _interpret(interpreter: subprocess.Popen[str], block: Block, folder: Path) -> str:
    assert interpreter.stdin is not None
    assert interpreter.stdout is not None
    path = folder / f".block-{block.line}.py"
    path.write_text(block.text)
    interpreter.stdin.write(f"{path}\n")
    interpreter.stdin.flush()
    printed = ""
    for line in interpreter.stdout:
        printed += line
        if line.startswith("=== "):
            break
    path.unlink()
    return printed


def _check_printed(wanted: str, printed: str, where: str) -> None:
    at = 0
    lines = [line.rstrip() for line in printed.splitlines()]
    for line in wanted.splitlines():
        if line.strip() in ("", "…"):
            continue
        pattern = re.compile(".*".join(map(re.escape, line.rstrip().split("…"))))
        found = next((index for index in range(at, len(lines)) if pattern.fullmatch(lines[index])), None)
        assert found is not None, f"{where}: {line!r} is not in what was printed:\n{printed}"
        at = found + 1
