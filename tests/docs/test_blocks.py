"""Every block of every page is of a kind that some test holds: what is shown of `det` exists, and YAML is accepted."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.core import TyperGroup

from cli import commands
from tests.docs.pages import Block, blocks
from tests.kit.servers import REPOSITORY
from workflows.campaigns.definition import parse_definition
from workflows.config import experiment_config_json_schema
from workflows.config.check import check_written
from workflows.config.config_policies import ConfigPolicy, Workload, parse_policy

PAGES = sorted(
    [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *(REPOSITORY / "examples").rglob("*.md")]
)
#: Run by a test, looked into by one of this file, or drawn.
KINDS = {"sh", "python", "diff", "yaml", "json", "sql", "text", "console", "mermaid", ""}
#: Of the file that configures a cluster's processes, not an experiment.
PROCESSES = json.loads((REPOSITORY / "docs/reference/configuration.schema.json").read_text())
_DET = re.compile(r"(?:^|[;|&(]\s*|until |\$ )det (.+)")
MINIMAL = {"name": "x", "entrypoint": "python3 train.py", "searcher": {"name": "single", "metric": "loss"}}


def shown(kind: str) -> Iterator[tuple[Path, Block]]:
    for page in PAGES:
        for block in blocks(page):
            if block.kind == kind:
                yield page, block


def where(page: Path, block: Block) -> str:
    return f"{page.relative_to(REPOSITORY)}:{block.line}"


def test_blocks_are_of_known_kinds() -> None:
    unknown = [where(page, block) for page in PAGES for block in blocks(page) if block.kind not in KINDS]
    assert not unknown


@pytest.mark.parametrize(
    ("page", "block"), list(shown("json")), ids=[where(page, block) for page, block in shown("json")]
)
def test_json_is_json(page: Path, block: Block) -> None:
    json.loads(block.text)


def commands_shown() -> Iterator[tuple[str, str]]:
    for kind in ("sh", "console", ""):
        for page, block in shown(kind):
            for line in block.text.splitlines():
                for command in _DET.findall(line if kind == "sh" else line if line.startswith("$ ") else ""):
                    yield where(page, block), re.split(r"\s+#|[;|&>]|\)", command)[0].strip()

    for page in PAGES:
        if "compatibility" not in page.parts[-1]:  # the published clients' commands
            for command in re.findall(r"`det\s([^`]+)`", page.read_text()):
                yield str(page.relative_to(REPOSITORY)), " ".join(command.split())


def test_commands_that_pages_show_exist() -> None:
    found = list(commands_shown())
    assert len(found) > 30
    problems = [f"{place}: det {command}: {problem}" for place, command in found if (problem := wrong(command))]
    assert not problems, "\n".join(problems)


def wrong(command: str) -> str:
    """What is wrong with a command line: its command, or an option. Words in capitals stand for others."""
    words = [word for word in shlex.split(command.replace("…", "")) if not word.isupper()]
    if not words or words[0].startswith("-"):
        return ""
    entry = commands.find(words[0])
    if entry is None:
        return "there is no such command"
    words = [entry.word, *words[1:]] if entry.word else words[1:]
    at = importlib.import_module(f"cli.{entry.module}").command()
    while isinstance(at, TyperGroup) and words and not words[0].startswith("-"):
        inner = at.get_command(None, words[0])  # pyright: ignore[reportArgumentType]
        if inner is None:
            return f"{words[0]} is no command of it"
        at, words = inner, words[1:]
    if isinstance(at, TyperGroup):
        return ""
    known = {option for parameter in at.params for option in (*parameter.opts, *parameter.secondary_opts)}
    options = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
    return ", ".join(f"{option} is no option of it" for option in options if option not in {*known, "--help"})


@pytest.mark.parametrize("block", [pytest.param(block, id=where(page, block)) for page, block in shown("yaml")])
def test_configuration_is_accepted(block: Block) -> None:
    document = yaml.safe_load(block.text)
    if document.keys() <= ConfigPolicy.model_fields.keys():
        assert parse_policy(block.text, Workload.EXPERIMENT).written() == document
        return
    if document.keys() <= PROCESSES["properties"].keys():
        Draft202012Validator(PROCESSES).validate(document)
        return
    if document.keys() & {"steps", "schedule"}:
        steps = {} if "steps" in document else {"name": "x", "steps": {"a": {"task": {"entrypoint": "true"}}}}
        assert parse_definition(json.dumps(document | steps), lambda path: json.dumps(MINIMAL)).order
        return
    assert document.keys() <= experiment_config_json_schema()["properties"].keys()
    assert not check_written(MINIMAL | document)
