"""Options that several commands share as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from cli.bundles import Bundle, bundled


@dataclass(frozen=True)
class Size(Bundle):
    height: Annotated[int, typer.Argument(metavar="HEIGHT")]
    width: Annotated[int, typer.Option("--width", min=1, help="So wide.")] = 2


def test_fields_are_options_in_the_place_of_the_bundle() -> None:
    seen: list[Any] = []
    app = typer.Typer()

    @app.command()
    @bundled
    def draw(name: str, size: Size, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:  # pyright: ignore
        seen.append((name, size, loud))

    runner = CliRunner()
    assert runner.invoke(app, ["box", "3", "--width", "4", "--loud"]).exit_code == 0
    assert runner.invoke(app, ["box", "3"]).exit_code == 0
    assert seen == [("box", Size(3, 4), True), ("box", Size(3), False)]
    assert runner.invoke(app, ["box", "3", "--width", "0"]).exit_code == 2
    page = runner.invoke(app, ["--help"]).output
    assert page.index("--width") < page.index("--loud")
