"""Check our words: `python -m docs.words` refuses what docs/glossary.md has in quotes, and says what to write.

It reads pages without their code, and the docstrings and messages of all packages.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
GLOSSARY = REPOSITORY / "docs" / "glossary.md"
PAGES = ("*.md", "docs/*.md", "docs/adr/*.md", "docs/tutorials/*.md")
#: Text by machines, and what earlier versions were.
LEFT_OUT = ("CHANGELOG.md", "docs/terminal-session.md")
CODE = ("workflows", "activities", "database", "api", "cli", "workers", "harness/determined")

_CODE = re.compile(r"^( *)```.*?^\1```|`[^`\n]*`|\]\([^)]*\)|<[^>\n]*>", re.DOTALL | re.MULTILINE)
_ROW = re.compile(r"^\| ([^|]*\"[^|]*) \| ([^|]*) \|$", re.MULTILINE)


def refused() -> dict[str, str]:
    """Phrase -> what to write in its place."""
    rows = _ROW.findall(GLOSSARY.read_text(encoding="utf-8").partition("## The words we write")[2])
    return {phrase: use for phrases, use in rows for phrase in re.findall(r'"([^"]+)"', phrases)}


def problems(text: str, words: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Line, from 1, and what is wrong there."""
    pattern = re.compile(
        r"\b(" + "|".join(map(re.escape, sorted(words, key=len, reverse=True))) + r")\b", re.IGNORECASE
    )
    for found in pattern.finditer(re.sub(r"(?<=\w)\n(?=\w)", " ", text)):
        yield text.count("\n", 0, found.start()) + 1, f'"{found[0]}": write {words[found[0].lower()]}'


def prose(page: str) -> str:
    """A page without its code, line for line."""
    return _CODE.sub(lambda code: "\n" * code[0].count("\n"), page)


def texts(source: str) -> Iterator[tuple[int, str]]:
    """First line and text of each docstring and each other string with a space in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, prose(node.value)


def found() -> Iterator[str]:
    """All problems, one a line."""
    words = refused()
    for page in sorted(path for pattern in PAGES for path in REPOSITORY.glob(pattern)):
        name = page.relative_to(REPOSITORY).as_posix()
        if name not in LEFT_OUT:
            text = prose(page.read_text(encoding="utf-8"))
            text = text.partition("## The words we write")[0] if page == GLOSSARY else text
            yield from (f"{name}:{line}: {what}" for line, what in problems(text, words))
    for path in sorted(path for folder in CODE for path in (REPOSITORY / folder).rglob("*.py")):
        for start, text in texts(path.read_text(encoding="utf-8")):
            name = path.relative_to(REPOSITORY).as_posix()
            yield from (f"{name}:{start + line - 1}: {what}" for line, what in problems(text, words))


if __name__ == "__main__":
    lines = list(found())
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.exit(bool(lines))
