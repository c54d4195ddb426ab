"""What docs/runbooks.md has operators type and look at is there, and its SQL runs on today's schema."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml
from sqlalchemy import text

from cli.main import main
from database.migrate import migrate
from database.models import Base
from database.session import Database
from tests.kit.servers import REPOSITORY

PAGE = (REPOSITORY / "docs" / "runbooks.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [body for name, body in _BLOCK.findall(PAGE) if name == language]


def commands() -> set[tuple[str, ...]]:
    """The commands of `det` by their words, up to the first that stands for a value."""
    lines = [line for block in blocks("sh") for line in block.splitlines()] + re.findall(r"`(det [^`…]+)…?`", PAGE)
    found: set[tuple[str, ...]] = set()
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[:1] == ["det"]:
            found.add(tuple(words[1:]))
    return found


def test_sql_runs(postgres_database: str) -> None:
    database = Database(postgres_database)
    migrate(database)
    statements = [part for block in blocks("sql") for part in block.split(";") if part.strip()]
    assert len(statements) >= 6
    with database.read() as session:
        for statement in statements:
            session.execute(text(statement)).all()
    database.close()


def test_tables_alerts_and_metrics_are_there() -> None:
    rules = yaml.safe_load((REPOSITORY / "deploy" / "monitoring" / "alerts.yaml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    named = set(re.findall(r"`(Undeterred\w+)`", PAGE))
    assert named <= alerts
    assert alerts - named <= {"UndeterredProcessDown", "UndeterredApiErrors", "UndeterredStartsSlow"}, "say what to do"
    monitoring = (REPOSITORY / "docs" / "monitoring.md").read_text()
    for metric in re.findall(r"`((?:undeterred|temporal)_\w+)`", PAGE):
        assert f"`{metric}`" in monitoring, metric
    for cell in re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \| (?:set|they go|files|messages)", PAGE, re.MULTILINE):
        assert set(re.findall(r"`(\w+)`", cell)) <= set(Base.metadata.tables)


@pytest.mark.parametrize("words", sorted(commands()), ids=" ".join)
def test_command_is_there_with_its_options(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    path = [word for word in words if re.fullmatch(r"[a-z][a-z-]*", word) and words.index(word) < 3]
    options = [word for word in words if word.startswith("--")]
    assert main([*path, "--help"]) == 0, capsys.readouterr().err
    told = capsys.readouterr()
    assert f"det {' '.join(path)}" in told.out, "it is a command of its own"
    for option in options:
        assert option in told.out, f"{' '.join(path)} has no {option}"
