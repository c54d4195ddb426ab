"""What is wrong with a configuration: one problem a finding, one error for all of them.

The text of :class:`ConfigError` keeps the shape that clients of Determined know; the hint and the line follow it.
Source: spec experiment-config.md §1 and §17.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Path = tuple[str | int, ...]
"""Where a value sits: map keys as text, list positions (from 0) as numbers. The empty path is the whole config."""

_ROOT = "<config>"


class Stage(StrEnum):
    """The validation stage that failed; it decides how the error's text begins."""

    PARSE = "parse"
    VERSION = "version"
    SANE = "sane"
    COMPLETE = "complete"


_PREFIX = {
    Stage.PARSE: "invalid experiment configuration: unable to convert yaml to json: ",
    Stage.VERSION: "invalid experiment configuration: ",
    Stage.SANE: ("invalid experiment configuration: version 0 experiment config is invalid: config is invalid: "),
    Stage.COMPLETE: (
        "invalid experiment configuration: version 0 experiment config is invalid: config is invalid or incomplete: "
    ),
}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        path: Where, as ``<config>.resources.slots_per_trial`` or ``<config>.labels[0]``.
        message: What was expected and what was found; no line end.
        line: Line in the submitted text, from 1; None when the config was not text.
        column: Column in that line, from 1.
        value: The offending value; for a key that is unknown, the key's value.
        hint: What to do instead, a phrase without brackets, or None.
    """

    path: str
    message: str
    line: int | None = None
    column: int | None = None
    value: Any = None
    hint: str | None = None

    def __str__(self) -> str:
        """The line of the error text: path, message, hint, line number."""
        notes = "".join(
            f" ({note})" for note in (self.hint, f"line {self.line}" if self.line is not None else None) if note
        )
        return f"{self.path}: {self.message}{notes}"


class ConfigError(Exception):
    """The configuration cannot be used; `problems` holds everything that is wrong with it, sorted by path."""

    def __init__(self, problems: Iterable[Problem], stage: Stage = Stage.SANE) -> None:
        """Keep the problems, each once, in the order of their text."""
        self.problems: list[Problem] = list({str(p): p for p in sorted(problems, key=str)}.values())
        self.stage = stage
        super().__init__(self._text())

    def _text(self) -> str:
        prefix = _PREFIX[self.stage]
        if self.stage in (Stage.PARSE, Stage.VERSION):
            # These are about the text, not about a place in the tree: the path would only be noise.
            return prefix + "\n".join(str(p).removeprefix(f"{_ROOT}: ") for p in self.problems)
        return prefix + "\n".join(str(p) for p in self.problems)


def render_path(path: Path) -> str:
    """Write a path as the messages do: ``("labels", 0)`` becomes ``<config>.labels[0]``."""
    return _ROOT + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def suggest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` most likely stands for, or None when nothing is close."""
    import difflib  # only a failing config needs it

    by_folded = {k.casefold().replace("-", "_"): k for k in known}
    close = difflib.get_close_matches(word.casefold().replace("-", "_"), list(by_folded), n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None
