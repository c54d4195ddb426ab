"""How answers are printed: tables for people, JSON, YAML and CSV for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Sequence[Any]


def say(text: str = "") -> None:
    """Print to stdout."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """Print to stderr what is for a person and not part of the answer."""
    sys.stdout.flush()
    sys.stderr.write(text + "\n")


def is_interactive() -> bool:
    """Whether a person looks at stdout and may be shown colours and things that move."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and "NO_COLOR" not in os.environ


@dataclass(frozen=True)
class Form:
    """How a list is wanted: what `--json`, `--yaml`, `--csv`, `--columns`, `--limit`, `--offset`, `--pages` said."""

    as_json: bool = False
    as_yaml: bool = False
    as_csv: bool = False
    columns: str = ""
    limit: int | None = None
    offset: int = 0
    pages: str | None = None

    @property
    def is_for_programs(self) -> bool:
        """Whether nothing but the answer is to be on stdout."""
        return self.as_json or self.as_yaml or self.as_csv

    @property
    def as_document(self) -> bool:
        """Whether the API's own objects are printed, and not rows."""
        return self.as_json or self.as_yaml

    @property
    def most(self) -> int | None:
        """The most items to show; None: all. With `--pages all` the limit is the size of a page."""
        return None if self.pages == "all" else self.limit


TABLE = Form()


def listing(headers: Sequence[str], rows: Iterable[Row], form: Form = TABLE, *, raw: Any = None) -> None:
    """Print a list in the wanted form: `raw`, the API's own objects, as JSON or YAML, else the rows.

    Raises: BadParameter if there is no such column.
    """
    if form.as_document:
        shown: Any = raw[: form.most] if isinstance(raw, list) else raw  # pyright: ignore[reportUnknownVariableType]
        document(shown, as_json=form.as_json)
        return
    headers, rows = _chosen(form.columns, headers, list(rows)[: form.most])
    (csv_out if form.as_csv else table)(headers, rows)


def document(value: Any, *, as_json: bool) -> None:
    """Print what is no list: as JSON, else as YAML."""
    (json_out if as_json else yaml_out)(value)


def _chosen(columns: str, headers: Sequence[str], rows: Sequence[Row]) -> tuple[Sequence[str], Sequence[Row]]:
    """The columns that are wanted, in that order; all of them if nothing is."""
    if not columns:
        return headers, rows
    places: list[int] = []
    by_name = {header.lower(): at for at, header in enumerate(headers)}
    for name in columns.split(","):
        at = by_name.get(name.strip().lower())
        if at is None:
            raise _no_such_column(name.strip(), headers)
        places.append(at)
    return [headers[at] for at in places], [[row[at] for at in places] for row in rows]


def _no_such_column(name: str, headers: Sequence[str]) -> Exception:
    import difflib

    import typer

    close = difflib.get_close_matches(name.lower(), [header.lower() for header in headers], 1, 0.5)
    near = next((f"did you mean {header!r}? " for header in headers if [header.lower()] == close), "")
    return typer.BadParameter(
        f"there is no column {name!r}; {near}There are: {', '.join(headers)}.", param_hint="--columns"
    )


def table(headers: Sequence[str], rows: Iterable[Row]) -> None:
    """Print a table; numbers to the right, missing values as N/A."""
    shown = [list(row) for row in rows]
    cells = [[cell(value) for value in row] for row in shown]
    widths = [max([len(header), *(len(row[at]) for row in cells)]) for at, header in enumerate(headers)]
    right = [bool(shown) and all(_is_number(row[at]) for row in shown) for at in range(len(headers))]

    def line(values: Sequence[str]) -> str:
        parts = [f"{v:>{w}}" if r else f"{v:<{w}}" for v, w, r in zip(values, widths, right, strict=True)]
        return (" " + " | ".join(parts)).rstrip()

    say(line(headers))
    say("+".join("-" * (width + 2) for width in widths))
    for row in cells:
        say(line(row))


def cell(value: Any) -> str:
    """A value as a table shows it."""
    if value is None or value == "":
        return "N/A"
    if isinstance(value, Mapping):
        import json

        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).replace("\n", " ")


def json_out(value: Any) -> None:
    """Print JSON."""
    import json

    _say_coloured(json.dumps(value, indent=4, sort_keys=True, ensure_ascii=False, default=str), "json")


def yaml_out(value: Any) -> None:
    """Print YAML."""
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=False)
    _say_coloured(text.removesuffix("...\n").rstrip("\n"), "yaml")


def _say_coloured(text: str, language: str) -> None:
    """Print JSON or YAML, with colours for a person who asked for them by DET_CLI_COLORIZE."""
    if not is_interactive() or os.environ.get("DET_CLI_COLORIZE", "").lower() in ("", "0", "false"):
        say(text)
        return
    from rich.console import Console
    from rich.syntax import Syntax

    sys.stdout.flush()
    Console(force_terminal=True).print(Syntax(text, language, background_color="default", word_wrap=True))


def csv_out(headers: Sequence[str], rows: Iterable[Row]) -> None:
    """Print CSV."""
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(headers)
    writer.writerows([cell(v) if isinstance(v, Mapping) else "" if v is None else v for v in row] for row in rows)


def part(body: Mapping[str, Any] | None, *names: str) -> dict[str, Any]:
    """An object within an answer of the API, empty if it or one on the way is missing or null."""
    found: Any = body
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def parts(body: Mapping[str, Any], name: str) -> list[Any]:
    """A list within an answer of the API, empty if it is missing or null."""
    return body.get(name) or []


def state(name: str | None) -> str:
    """A state without its prefix."""
    return (name or "").removeprefix("STATE_")


def time_of(text: str | None) -> str | None:
    """A time of the API as tables show it: `2026-01-02 03:04:05+0000`."""
    if not text:
        return None
    from datetime import UTC, datetime

    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S%z")


def percent(ratio: float | None) -> str | None:
    """A ratio as tables show it: `12.3%`."""
    return None if ratio is None else f"{ratio * 100:.1f}%"


def size(count: float) -> str:
    """A number of bytes for people: `1.5 MB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def confirm(question: str, yes: bool) -> None:
    """Ask, unless `--yes` was given. Raises: Abort if the answer is no."""
    if not yes:
        import typer

        typer.confirm(question, abort=True)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
