"""What a command that reads loads and converts: each module more is milliseconds of every call of `det`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from cli.group import command_of, new_app
from cli.plain import plain, read_plainly
from tests.unit.cli.conftest import Cluster, Det

_TRIAL = {"trial": {"id": 1, "experimentId": 1, "state": "STATE_COMPLETED", "hparams": {}}}
#: Each takes 5 to 60 ms of processor time to load.
_COSTLY = "pydantic httpx http.client ssl email asyncio rich yaml ruamel temporalio workflows"


@pytest.mark.parametrize("words", ["e ls", "e ls --limit 20 --csv", "t describe 1", "a ls", "user whoami"])
def test_a_command_that_reads_loads_nothing_costly(cluster: Cluster, words: str) -> None:
    cluster.routes["GET /api/v1/experiments"] = {"experiments": [], "pagination": {"total": 0}}
    cluster.routes["GET /api/v1/trials/1"] = _TRIAL
    cluster.routes["GET /api/v1/agents"] = {"agents": []}
    cluster.routes["GET /api/v1/master"] = {"version": "1"}
    cluster.default = (200, {})
    script = (
        "import sys; from cli.main import main; code = main(sys.argv[2:]);"
        "print('loaded', code, [name for name in sys.argv[1].split() if name in sys.modules], len(sys.modules))"
    )
    command = [sys.executable, "-c", script, _COSTLY, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("loaded")]
    code, found = line.split(" ", 2)[1:]
    assert (code, found.rpartition(" ")[0]) == ("0", "[]"), done
    assert int(found.rpartition(" ")[2]) < 230, "modules in all"


def test_one_call_makes_one_command(det: Det, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    whole = typer.main.get_command_from_info

    def counted(info: Any, **more: Any) -> Any:
        made.append(info.name or info.callback.__name__)
        return whole(info, **more)

    monkeypatch.setattr("cli.group.get_command_from_info", counted)
    cluster.routes["GET /api/v1/experiments"] = {"experiments": [], "pagination": {"total": 0}}
    assert det("e", "ls").code == 0
    assert made == ["list"]


_TEXT = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"]), max_size=8)
_WORDS = st.lists(_TEXT | st.integers().map(str) | st.floats().map(str) | st.sampled_from(["a", "b", "B"]), max_size=3)


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (str, {}),
        (int, {}),
        (int, {"min": -1, "max": 20}),
        (float, {"min": 0}),
        (Literal["a", "b"], {}),
        (Literal["a", "b"], {"case_sensitive": False}),
        (list[int], {}),
        (list[str], {}),
        (Path, {}),
        (Path, {"exists": True}),
    ],
)
@given(words=_WORDS)
def test_what_is_plain_is_what_typer_makes_of_it(kind: Any, option: dict[str, Any], words: list[str]) -> None:
    app = typer.Typer()

    def take(given: Any) -> None: ...

    take.__annotations__["given"] = Annotated[kind, typer.Option(**option)]
    app.command()(take)
    (parameter,) = [each for each in typer.main.get_command(app).params if each.name == "given"]
    value: Any = words if kind in (list[int], list[str]) else "".join(words[:1])
    descriptor: Any = parameter
    found = plain(kind, descriptor.type_descriptor.parameter_info, value)
    if found is None:
        return  # typer converts it, or refuses it
    context = typer.Context(typer.main.get_command(app))
    expected = descriptor.get_runtime_param().coerce(value, param=parameter, ctx=context)
    assert (found, type(found)) == (expected, type(expected))
    read_plainly(parameter)
    assert descriptor.get_runtime_param().coerce(value, param=parameter, ctx=context) == expected


def test_what_is_wrong_is_refused_in_typers_words(capsys: pytest.CaptureFixture[str]) -> None:
    app = new_app("One.")

    @app.command()
    def one(number: Annotated[int, typer.Option(min=3)] = 5) -> None:
        typer.echo(repr(number))

    for value, expected in (("2", "greater than or equal to 3"), ("x", "valid integer")):
        with pytest.raises(typer.BadParameter, match=expected):
            command_of(app).main(["one", "--number", value], standalone_mode=False)
    command_of(app).main(["one", "--number", "7"], standalone_mode=False)
    assert capsys.readouterr().out == "7\n"
