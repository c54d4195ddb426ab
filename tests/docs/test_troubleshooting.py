"""What docs/troubleshooting.md quotes is said by the code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.kit.servers import REPOSITORY

PAGE = REPOSITORY / "docs" / "troubleshooting.md"
FOLDERS = ("activities", "api", "cli", "database", "harness/determined", "workers", "workflows")
#: Words of others: Python's, torch's.
OTHERS = ("ModuleNotFoundError: No module named", "MemoryError", "CUDA out of memory")
#: What stands for a value in the code, and may be spelled out on the page.
_VALUE = re.compile(r"\{[^{}]*\}")


def quotations() -> Iterator[str]:
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `"):
            yield from re.findall(r"`([^`]+)`", line.split("|")[1])


def test_each_quotation_is_said_by_the_code() -> None:
    sources = [path.read_text() for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py")]
    said = re.sub(r"""["']\s*\n\s*f?["']""", "", "\n".join(sources)).replace("`", "")
    alternatives = _VALUE.sub("…", said)
    missing = [
        part
        for quotation in quotations()
        if not quotation.startswith(OTHERS)
        for part in map(str.strip, quotation.split("…"))
        if len(part) > 3 and part not in said and part not in alternatives
    ]
    assert not missing
    assert len(list(quotations())) > 25
