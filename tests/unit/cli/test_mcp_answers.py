"""Answers of `det mcp` fit into a model's context, and say what they leave out."""

from __future__ import annotations

from cli.mcp_server.cluster import MOST_CHARS, cut, only, state, tail, told


def test_a_document_keeps_its_beginning_and_a_log_its_end() -> None:
    lines = "".join(f"{n} a line of a log\n" for n in range(3000))
    assert len(lines) > MOST_CHARS
    assert cut(lines).startswith("0 a line")
    assert cut(lines).endswith(f"… cut: {len(lines):,} characters in all; ask for less of it")
    kept = tail(lines)
    assert kept.endswith("2999 a line of a log\n")
    assert kept.partition("\n")[0] == f"… cut: {len(lines):,} characters in all; ask for fewer lines"
    assert kept.splitlines()[1].partition(" ")[2] == "a line of a log", "no line is cut in two"
    assert (cut("short"), tail("short")) == ("short", "short")


def test_what_is_empty_is_left_out() -> None:
    row = {"id": 1, "name": "", "labels": [], "progress": 0, "state": "GENERIC_TASK_STATE_PAUSED", "other": 1}
    assert only(row, ("id", "name", "labels", "progress", "missing")) == {"id": 1, "progress": 0}
    assert state(row) == "PAUSED"
    assert told({"a": "é"}) == '{"a":"é"}'
