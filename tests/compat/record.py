"""What the published clients did and how it went: kept while the tests run, compared with what is committed.

`docs/compatibility/seen.json` is the committed record, and `docs/compatibility.md` is made from it. A run with
`UNDETERRED_RECORD_COMPATIBILITY=1` writes it anew.
"""

from __future__ import annotations

import csv
import json
import re
import threading
from collections import defaultdict
from dataclasses import dataclass, field

from tests.kit.servers import REPOSITORY

FOLDER = REPOSITORY / "docs" / "compatibility"
SEEN = FOLDER / "seen.json"
WORKS, NOT_YET, OWN_FAULT = "works", "not yet", "the client itself:"

Results = dict[str, dict[str, str]]
"""What was done, by which generation of client, and how it went."""


@dataclass
class _Answers:
    statuses: set[int] = field(default_factory=set[int])
    is_served: bool = False

    def result(self) -> str:
        errors = sorted(status for status in self.statuses if status >= 500 and status != 501)
        if errors:
            return f"fails: answers {errors[0]}"
        if any(status < 300 for status in self.statuses):
            return WORKS
        if not self.is_served:
            return NOT_YET
        return "refused: answers " + ", ".join(str(status) for status in sorted(self.statuses))


class Record:
    """Filled by the proxies and the tests, from several threads."""

    def __init__(self) -> None:
        self._templates = _templates()
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, str], _Answers] = defaultdict(_Answers)
        self.commands: Results = {}
        self.programs: Results = {}

    def answered(self, generation: str, method: str, path: str, status: int, *, is_served: bool) -> None:
        """A client's request was answered. `is_served`: there is such an endpoint, and it does what it is for."""
        endpoint = next((f"{m} {t}" for m, t, p in self._templates if m == method and p.fullmatch(path)), "")
        with self._lock:
            # What our table of endpoints does not know is shown as it came.
            answers = self._answers[endpoint or f"{method} {path}", generation]
            answers.statuses.add(status)
            answers.is_served |= is_served

    def command(self, generation: str, name: str, result: str) -> None:
        """A command of `det` ended. The worse result counts when it is used several times."""
        _note(self.commands, name, generation, result)

    def program(self, generation: str, name: str, result: str) -> None:
        """A step of a program that uses the SDK or the Core API ended."""
        _note(self.programs, name, generation, result)

    def as_json(self) -> dict[str, Results]:
        """All of it, in an order that does not change from run to run."""
        endpoints: Results = {}
        with self._lock:
            for (endpoint, generation), answers in self._answers.items():
                endpoints.setdefault(endpoint, {})[generation] = answers.result()
        parts = {"commands": self.commands, "programs": self.programs, "endpoints": endpoints}
        return {
            name: {key: dict(sorted(results[key].items(), reverse=True)) for key in sorted(results)}
            for name, results in parts.items()
        }


def load() -> dict[str, Results]:
    """The committed record."""
    return json.loads(SEEN.read_text()) if SEEN.exists() else {}


def save(record: dict[str, Results]) -> None:
    """Commit to this record."""
    SEEN.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def differences(committed: dict[str, Results], seen: dict[str, Results], *, is_complete: bool) -> list[str]:
    """What is not as committed, a line each; what was not seen at all counts only if every test ran."""
    lines: list[str] = []
    for part, results in seen.items():
        before = committed.get(part, {})
        for key in sorted(results.keys() | (before.keys() if is_complete else set())):
            now, then = results.get(key, {}), before.get(key, {})
            for generation in sorted(now.keys() | (then.keys() if is_complete else set())):
                is_now, was = now.get(generation, "not seen"), then.get(generation, "not recorded")
                if is_now != was:
                    lines.append(f"{part}: {key} with {generation}: {was} -> {is_now}")
    return lines


def unknown_endpoints(seen: dict[str, Results]) -> list[str]:
    """What clients asked for and our table of endpoints does not list."""
    known = {f"{row['method']} {row['path']}" for row in rows("endpoints.csv")}
    return sorted(seen["endpoints"].keys() - known)


def rows(name: str) -> list[dict[str, str]]:
    """A table of the contract."""
    with (FOLDER / name).open(newline="") as file:
        return list(csv.DictReader(file))


def _note(results: Results, name: str, generation: str, result: str) -> None:
    known = results.setdefault(name, {})
    if known.get(generation, WORKS) == WORKS:
        known[generation] = result


def _templates() -> list[tuple[str, str, re.Pattern[str]]]:
    """Method, path and pattern of each endpoint; those with fewer variable parts are asked first."""
    found: list[tuple[str, str, re.Pattern[str]]] = []
    for row in sorted(rows("endpoints.csv"), key=lambda row: row["path"].count("{")):
        pieces = re.split(r"(\{\w+\})", row["path"].rstrip("/"))
        pattern = "".join(
            (".*" if piece == "{path}" else "[^/]+") if piece.startswith("{") else re.escape(piece) for piece in pieces
        )
        found.append((row["method"], row["path"], re.compile(pattern + "/?")))
    return found
