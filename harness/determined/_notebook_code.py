"""The code of a notebook as a script, without what only a notebook can run."""

from __future__ import annotations

import ast
import json
import os

from determined.common.context import MAX_CONTEXT_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Callable

    Cells = list[tuple[int, str]]

# Magics that only measure what they run, and those whose absence changes nothing.
_TRANSPARENT = ("time", "capture")
_SILENT = ("det", "pinfo", "pinfo2")
_LONGEST_SHOWN = 80
_DISPLAY = "try:\n    from IPython.display import display\nexcept ImportError:\n    display = print\n"


class NotebookError(Exception):
    """A notebook is no script. Its text says why, in one sentence."""


def read_cells(path: str) -> Cells:
    """The code cells of a notebook's file: number, counted over all cells from 1, and text. Raises: NotebookError."""
    try:
        if os.path.getsize(path) > MAX_CONTEXT_BYTES:
            raise NotebookError(f"{path} is larger than {MAX_CONTEXT_BYTES >> 20} MiB: clear its outputs")
        with open(path, encoding="utf-8") as f:
            notebook: Any = json.load(f)
        cells = [(number, _cell(cell)) for number, cell in enumerate(notebook["cells"], 1)]
        metadata: Any = notebook.get("metadata") or {}
        kernel: Any = metadata.get("kernelspec") or {}
        language = str(kernel.get("language") or "python")
    except OSError as e:
        raise NotebookError(f"{path} can't be read: {e.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise NotebookError(f"{path} is no notebook of the format 4 (`.ipynb`)") from None
    if language.lower() != "python":
        raise NotebookError(f"{path} is a notebook of {language[:40]!r}, but must be one of Python")
    return [(number, text) for number, text in cells if text.strip()]


def _cell(cell: Any) -> str:
    source = cell["source"] if cell["cell_type"] == "code" else ""
    text: str = source if isinstance(source, str) else "".join(source)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def script_of(cells: Cells, origin: str, transform: Callable[[str], str]) -> tuple[str, list[str]]:
    """The script, and what was left out, in the words of the notebook.

    Args:
        cells: Its code cells.
        origin: Its name, for the first line.
        transform: IPython's: from a cell's text, with magics, to Python.

    Raises:
        NotebookError: There is no code, or it can't run as a script.
    """
    left_out: list[str] = []
    parts = [(number, _without_magics(number, text, transform, left_out)) for number, text in cells]
    parts = [(number, text) for number, text in parts if _does_something(text)]
    if not parts:
        raise NotebookError(f"{origin} has no code that a script can run")
    lines, starts = [f"# From {json.dumps(origin)}, by `%det run`."], list[tuple[int, int]]()
    whole = "\n".join(text for _, text in parts)
    if "display(" in whole and "__future__" not in whole:
        lines += _DISPLAY.splitlines()
    for number, text in parts:
        lines += ["", f"# cell {number}"]
        starts.append((len(lines), number))
        lines += text.rstrip("\n").split("\n")
    script = "\n".join(lines) + "\n"
    _check(script, starts)
    return script, left_out


def _check(script: str, starts: list[tuple[int, int]]) -> None:
    try:
        compile(script, "notebook.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as e:
        line = getattr(e, "lineno", None) or 1
        first, number = next((each for each in reversed(starts) if each[0] < line), starts[0])
        raise NotebookError(f"cell {number}, line {line - first}: {getattr(e, 'msg', e)}") from None


def _does_something(text: str) -> bool:
    try:
        return any(not isinstance(statement, ast.Pass) for statement in ast.parse(text).body)
    except (SyntaxError, ValueError):
        return True  # the check of the whole says what is wrong


def _without_magics(number: int, cell: str, transform: Callable[[str], str], left_out: list[str]) -> str:
    text = transform(cell)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return text
    only = _call_of(tree.body[0]) if len(tree.body) == 1 else None
    if only is not None and only[0] == "run_cell_magic":
        name, body = only[1][0], only[1][-1]
        if name in _TRANSPARENT:
            return _without_magics(number, body, transform, left_out)
        left_out.append(f"cell {number} (%%{name})")
        return ""
    lines = text.split("\n")
    for statement, called, words in _magics(tree):
        _replace(lines, statement, called, words, left_out)
    return "\n".join(lines)


def _magics(tree: ast.AST) -> Iterator[tuple[ast.stmt, str, list[str]]]:
    """The statements that need IPython, with the method of it that they call, and what they pass."""
    for node in ast.walk(tree):
        found = _call_of(node) if isinstance(node, (ast.Expr, ast.Assign)) else None
        if found is not None:
            yield node, found[0], found[1]  # pyright: ignore[reportReturnType]


def _call_of(node: ast.AST) -> tuple[str, list[str]] | None:
    """`get_ipython().<method>(<texts>)`, as IPython writes it for a magic."""
    call = getattr(node, "value", None)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    inner = call.func.value
    is_ipython = isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "get_ipython"
    words = [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    return (call.func.attr, words) if is_ipython and words and len(words) == len(call.args) else None


def _replace(lines: list[str], statement: ast.stmt, called: str, words: list[str], left_out: list[str]) -> None:
    """Put `pass` in the place of a statement, or what it measures."""
    first, last = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
    indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
    if called == "run_line_magic" and words[0] in _TRANSPARENT and isinstance(statement, ast.Expr) and words[-1]:
        lines[first] = indent + words[-1]
        lines[first + 1 : last + 1] = [""] * (last - first)
        return
    shown = f"%{' '.join(words)}".strip() if called == "run_line_magic" else f"!{words[-1]}"
    shown = "".join(letter if letter.isprintable() else " " for letter in shown)[:_LONGEST_SHOWN]
    lines[first] = f"{indent}pass  # {shown}"
    lines[first + 1 : last + 1] = [""] * (last - first)
    if called != "run_line_magic" or words[0] not in _SILENT:
        left_out.append(shown)
