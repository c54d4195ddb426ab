"""The synchronous and the asynchronous client are one source."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from determined.experimental import aio, client

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def twins() -> Any:
    spec = importlib.util.spec_from_file_location("twins", REPOSITORY / "harness" / "twins.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_twins_are_up_to_date(twins: Any) -> None:
    for source in twins.sources():
        assert twins.target_of(source).read_text() == twins.twin(source), "run python -m harness.twins"


def test_a_twin_has_neither_async_nor_await(twins: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "HERE", tmp_path)
    source = tmp_path / "_async" / "thing.py"
    source.parent.mkdir()
    source.write_text(
        '"""A thing: `async with await AsyncThing.open()`."""\n\n'
        "from x._async import _io\nfrom x._async.y import AsyncOther\n\n\n"
        "class AsyncThing:\n"
        "    async def __aenter__(self) -> AsyncOther:\n"
        "        names = [name async for name in self.names()]\n"
        "        async for name in self.names():\n"
        "            await _io.sleep(len(await self.wait(name)), names)  # await it\n"
    )
    made = twins.twin(source)
    assert "from _async/thing.py: do not edit." in made
    assert '"""A thing: `with Thing.open()`."""' in made
    assert "from x import _io\nfrom x.y import Other\n" in made
    assert "    def __enter__(self) -> Other:\n        names = list(self.names())\n" in made
    assert "            _io.sleep(len(self.wait(name)), names)  # await it" in made


def test_both_offer_the_same() -> None:
    for name in aio.__all__:
        ours, twin = getattr(aio, name), getattr(client, name.replace("Async", "", 1))
        names = {n for n in dir(ours) if not n.startswith("_")}
        # `Determined(…)` logs in itself, which nothing asynchronous can do in a constructor.
        assert names - {n for n in dir(twin) if not n.startswith("_")} <= {"login"}
        assert {n for n in dir(twin) if not n.startswith("_")} <= names
        for method in names - {"login", "from_session"}:
            function = getattr(ours, method)
            if inspect.isfunction(function):
                here, there = inspect.signature(function), inspect.signature(getattr(twin, method))
                assert list(here.parameters) == list(there.parameters), f"{name}.{method}"


@pytest.mark.parametrize(
    "module", ["determined", "determined.core", "determined.experimental.client", "determined.experimental.aio"]
)
def test_nothing_is_imported_before_it_is_used(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('httpx', 'pandas', 'torch', 'yaml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
