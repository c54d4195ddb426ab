"""The record of what the published clients saw is the committed one, and nothing is left out of it."""

from __future__ import annotations

import os

from tests.compat import record as records
from tests.compat.record import Record

WISH = "UNDETERRED_RECORD_COMPATIBILITY"


def test_clients_see_what_is_committed(record: Record, is_complete: bool) -> None:
    """Comes last. What is better than committed fails too: the page of compatibility would not tell it."""
    seen = record.as_json()
    if os.environ.get(WISH):
        assert is_complete, f"{WISH}: only a run of all of tests/compat may write the record"
        records.save(seen)
        return
    lines = records.differences(records.load(), seen, is_complete=is_complete)
    how = f"right? then {WISH}=1 .venv/bin/python -m pytest tests/compat; .venv/bin/python -m docs.generate"
    assert not lines, "\n".join(["", *lines, how])


def test_every_endpoint_that_clients_ask_for_is_in_the_table(record: Record) -> None:
    assert records.unknown_endpoints(record.as_json()) == []


def test_every_command_is_recorded() -> None:
    recorded = records.load()["commands"]
    for row in records.rows("commands.csv"):
        assert set(recorded.get(row["command"], {})) == set(row["clients"].split()), f"det {row['command']}"


def test_nothing_recorded_fails() -> None:
    """A record of a run with failures must not be committed."""
    for part, results in records.load().items():
        for name, by_generation in results.items():
            for generation, result in by_generation.items():
                assert not result.startswith("fails"), f"{part}: {name} with {generation} {result}"
