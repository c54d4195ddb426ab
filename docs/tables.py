"""Texts within tables of Markdown."""

from __future__ import annotations


def cell(text: str) -> str:
    """A text as a table's cell: on one line, and with nothing in it that Markdown or HTML would read."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
