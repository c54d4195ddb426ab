"""The page of training APIs keeps its word: what it says is here can be imported, what it says is not, can't."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")

from docs import training_page

ROWS = training_page.rows()
MODULES = sorted({row.module for row in ROWS if row.name})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", MODULES)
def test_names_are_here_or_not_as_the_page_says(module: str) -> None:
    of = [row for row in ROWS if row.module == module]
    if all(row.here.startswith("not:") for row in of):
        with contextlib.suppress(ImportError):  # it may be here with other names
            there = vars(importlib.import_module(module))
            assert not [row.name for row in of if row.name in there]
        return
    found = importlib.import_module(module)
    for row in of:
        if row.here.startswith("not:"):
            with pytest.raises((ImportError, AttributeError)):
                getattr(found, row.name)
            continue
        lacking = [member for member in row.members if not hasattr(getattr(found, row.name), member)]
        # What a constructor sets is no attribute of the class.
        kinds = getattr(found, row.name).__mro__ if lacking else ()
        source = "".join(inspect.getsource(kind) for kind in kinds if kind.__module__.startswith("determined"))
        assert not [member for member in lacking if f"self.{member} =" not in source], f"{row.name} has no {lacking}"


def test_programs_are_here() -> None:
    programs = [row.module for row in ROWS if not row.name]
    assert "determined.launch.tensorflow" in programs
    assert all(importlib.util.find_spec(program) for program in programs)


def test_each_name_that_is_not_here_says_what_to_do() -> None:
    assert all(len(row.here) > len("not: ") + 5 for row in ROWS if row.here.startswith("not:"))
    assert {row.clients for row in ROWS} >= {("0.38.1", "0.21.0"), ("0.38.1",), ("0.21.0",)}
