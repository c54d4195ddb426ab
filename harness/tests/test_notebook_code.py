"""A notebook's code as a script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from determined._notebook_code import NotebookError, read_cells, script_of


def written(path: Path, *cells: str, **more: Any) -> Path:
    """A notebook with these code cells."""
    listed = [{"cell_type": "code", "source": text.splitlines(keepends=True), "outputs": []} for text in cells]
    listed.insert(0, {"cell_type": "markdown", "source": "# A title\n%matplotlib"})
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "cells": listed, "metadata": {}, **more}))
    return path


def script(tmp_path: Path, *cells: str) -> tuple[str, list[str]]:
    path = written(tmp_path / "n.ipynb", *cells)
    return script_of(read_cells(str(path)), "n.ipynb", TransformerManager().transform_cell)


def run(text: str) -> str:
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=60).stdout


def test_cells_run_in_their_order(tmp_path: Path) -> None:
    text, left_out = script(tmp_path, "x = 1\nprint('x', x)", "", "# only a comment", "print('then', x + 1)")
    assert run(text) == "x 1\nthen 2\n"
    assert left_out == []
    assert "# cell 2\n" in text
    assert "# cell 5\n" in text


def test_magics_are_left_out_and_named(tmp_path: Path) -> None:
    cells = (
        "%matplotlib inline\n!pip install nothing\nfiles = !ls\nprint('kept')",
        "if True:\n    %cd /nowhere\nfor i in range(2):\n    !ls {i}\n    print(i)",
        "%%bash\nls",
        "%%time\ny = 5",
        "%time z = y + 1; w = 2",
        "text = '''\n%d is no magic\n!neither\n'''\nq = (7\n% 4)\nprint(text % 3, q, y, z, w)",
        "print?",
        "%det run --name again",
        "%det run",
    )
    text, left_out = script(tmp_path, *cells)
    assert run(text) == "kept\n0\n1\n\n3 is no magic\n!neither\n 3 5 6 2\n"
    assert left_out == [
        "%matplotlib inline",
        "!pip install nothing",
        "!ls",
        "%cd /nowhere",
        "!ls {i}",
        "cell 4 (%%bash)",
    ]
    assert "%det" not in text.replace("by `%det run`", "").replace("pass  # %det", "")


def test_display_is_there_without_a_notebook(tmp_path: Path) -> None:
    text, _ = script(tmp_path, "display(42)")
    assert run(text) == "42\n"


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["%det run"], "has no code that a script can run"),
        ([], "has no code that a script can run"),
        (["x = 1", "y = (\n"], "cell 3, line 1"),
        (["x = 1", "import asyncio\nawait asyncio.sleep(0)"], "cell 3, line 2: 'await' outside function"),
        (["x = 1", "from __future__ import annotations"], "cell 3, line 1: from __future__ imports must occur"),
        (["return 3"], "cell 2, line 1: 'return' outside function"),
    ],
)
def test_what_is_no_script_is_said_with_its_cell(tmp_path: Path, cells: list[str], told: str) -> None:
    with pytest.raises(NotebookError) as refused:
        script(tmp_path, *cells)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"cells": 3}', '{"cells": [{}]}', '{"cells": [{"cell_type": "code", "source": 7}]}', "[" * 100_000,
     '{"cells": [], "metadata": []}', '{"cells": [], "metadata": {"kernelspec": 4}}'],
)  # fmt: skip
def test_files_that_are_no_notebooks_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "n.ipynb").write_text(text)
    with pytest.raises(NotebookError) as refused:
        script_of(read_cells(str(tmp_path / "n.ipynb")), "n.ipynb", str)
    assert "no notebook" in str(refused.value) or "has no code" in str(refused.value)


def test_other_languages_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "r.ipynb", "x <- 1", metadata={"kernelspec": {"language": "R"}})
    with pytest.raises(NotebookError, match="is a notebook of 'R', but must be one of Python"):
        read_cells(str(path))
    with pytest.raises(NotebookError, match="can't be read: No such file"):
        read_cells(str(tmp_path / "none.ipynb"))
