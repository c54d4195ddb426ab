"""The contract: every command, argument, option and alias of Determined's `det` is ours too, or says why not.

`surface.csv` holds one of them in each line. `served` is `no` only with a reason.
"""

from __future__ import annotations

import csv
import functools
import importlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from cli import log_output
from cli.commands import ENTRIES, find, help_page
from tests.unit.cli.conftest import Cluster, Det

GENERATIONS = ("both", "0.21.0", "0.38.1")
LATER = ("oauth",)
KINDS = ("command", "alias", "default", "argument", "option")


#: How each module makes its group.
GROUPS = {entry.module: importlib.import_module(f"cli.{entry.module}").command for entry in ENTRIES}


class Line(NamedTuple):
    """One line of the contract."""

    command: str
    kind: str
    name: str
    generation: str
    served: str
    reason: str


with (Path(__file__).parent / "surface.csv").open(encoding="utf-8", newline="") as file:
    SURFACE = [Line(**row) for row in csv.DictReader(file)]
SERVED = [line for line in SURFACE if line.served == "yes"]


class Missing(Exception):
    """There is no such command."""


@functools.cache
def group_of(module: str) -> Any:
    return GROUPS[module]()


@functools.cache
def resolve(path: str) -> Any:
    """The command that these words mean. Raises: Missing."""
    first, *words = path.split()
    entry = find(first)
    if entry is None:
        raise Missing(first)
    command: Any = group_of(entry.module)
    words = [entry.word, *words] if entry.word else words
    for word in words:
        if not hasattr(command, "get_command"):
            break  # a module with one command is that command
        found = command.get_command(typer.Context(command), word)
        if found is None:
            raise Missing(path)
        command = found
    return command


def options_of(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def spellings(alias: str) -> Iterator[str]:
    """`a|gent` is every prefix from `a` on."""
    shortest, bar, rest = alias.partition("|")
    yield from (shortest + rest[:length] for length in range(len(rest) + 1)) if bar else [alias]


def problem_with(line: Line) -> str | None:
    """What is missing, if anything is."""
    if not line.command:
        return None if re.search(rf"(^|[ ,]){line.name}\b", help_page()) else f"det has no {line.name}"
    try:
        command = resolve(line.command)
        if line.kind == "alias":
            group = line.command.rpartition(" ")[0]
            for word in spellings(line.name):
                path = f"{group} {word}".strip()
                if resolve(path).get_short_help_str(200) != command.get_short_help_str(200):
                    return f"det {path} is something else than {line.command}"
    except Missing as missing:
        return f"there is no det {missing}"
    if line.kind == "option":
        target = resolve(f"{line.command} {command.default_word}") if getattr(command, "default_word", "") else command
        return None if line.name in options_of(target) else f"det {line.command} has no {line.name}"
    if line.kind == "default" and command.default_word != line.name:
        return f"det {line.command} alone is not {line.name}"
    return None


def problem_with_arguments(command: str, wanted: list[str]) -> str | None:
    """Whether the arguments differ in number, in whether they must be given, or in whether there may be several."""
    found = resolve(command)
    ours = [parameter for parameter in found.params if parameter.param_type_name == "argument"]
    if found.context_settings.get("allow_extra_args") and "..." in wanted[-1]:
        wanted = wanted[:-1]
    if len(ours) < len(wanted):
        return f"det {command} takes {len(ours)} arguments, expected {wanted}"
    for parameter, name in zip(ours, wanted, strict=False):
        if parameter.required and name.startswith("["):
            return f"det {command}: {name} may be left out"
        if "..." in name and parameter.nargs != -1:
            return f"det {command}: there may be several {name}"
    if any(parameter.required for parameter in ours[len(wanted) :]):
        return f"det {command} wants more than {wanted}"
    return None


def test_lines_of_the_contract_are_well_formed() -> None:
    assert len(SURFACE) > 600
    assert len({line[:3] for line in SURFACE}) == len(SURFACE)
    for line in SURFACE:
        assert line.generation in GENERATIONS, line
        assert line.kind in KINDS, line
        assert line.served == ("no" if line.reason else "yes"), line


def test_nothing_of_the_contract_is_missing() -> None:
    problems = [problem for line in SERVED if (problem := problem_with(line))]
    by_command: dict[str, list[str]] = {}
    for line in SERVED:
        if line.kind == "argument":
            by_command.setdefault(line.command, []).append(line.name)
    problems += [problem for each in by_command.items() if (problem := problem_with_arguments(*each))]
    assert not problems, "\n".join(["missing:", *problems])


def test_what_is_not_served_says_that_it_is_not_there(det: Det) -> None:
    for line in SURFACE:
        if line.served == "no" and line.kind == "command":
            result = det(*line.command.split(), "1", "--config-file", "x")
            assert (result.code, result.out) == (1, ""), line
            assert re.fullmatch(r"`det .*` is not there yet: .*\.\n", result.err), line
        if line.served == "no" and line.kind == "option":
            assert line.name not in options_of(resolve(line.command)), line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("checkpoint list", "no such command 'list'; see `det checkpoint -h`"),
        ("experiment create", "missing argument 'config_file'; see `det experiment create -h`"),
        ("trial list 1 --frob", "no such"),
        ("frob", "no such command: 'frob'; did you mean `det job`?"),
        ("experiment wait x", "invalid value for 'EXPERIMENT_ID': Input should be a valid integer"),
    ],
)
def test_mistakes_in_usage_are_sentences_of_one_style(det: Det, words: str, said: str) -> None:
    result = det(*words.split())
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(said)
    assert len(result.err.splitlines()) == 1


def all_commands() -> list[str]:
    """Every command there is, as words."""

    def below(command: Any, path: str) -> Iterator[str]:
        yield path
        for name, sub in getattr(command, "commands", {}).items():
            yield from below(sub, f"{path} {name}")

    found: list[str] = []
    for entry in ENTRIES:
        if entry.word:
            found.append(entry.name)
        else:
            found += below(group_of(entry.module), entry.name)
    return found


def test_every_command_has_a_help_page_that_explains_it_and_its_options(det: Det) -> None:
    for path in all_commands():
        page = det(*path.split(), "--help")
        assert page.code == 0, path
        assert page.err == "", path
        assert page.out.startswith("Usage: det"), path
        command = resolve(path)
        assert command.help, f"det {path} says nothing of itself"
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.name != "help":
                assert parameter.help, f"det {path} {parameter.opts[0]} says nothing of itself"


def test_what_lists_has_every_form_of_output() -> None:
    for path in all_commands():
        name = path.rpartition(" ")[2]
        if name == "list" or name.startswith("list-"):
            wanted = {"--json", "--yaml", "--csv", "--columns", "--limit"}
            assert wanted <= options_of(resolve(path)), path


LOCAL = (
    "agent run",
    "mcp",  # speaks its protocol to who started it: see tests/e2e/test_mcp.py
    "up",
    "down",
    "status",
    "logs",
    "deploy",
    "doctor",
    "completion",
    "dev",
    "user logout",
    "user whoami",
    "token login",
    "master version",
    "version",
    *LATER,
)
"""What asks no cluster, or more than a cluster."""
FURTHER = {
    "campaign backfill": "--from 2026-01-01 --to 2026-01-02",
    "experiment export": "--to tables",
    "trial add": "lr=1",
    "export mlflow": "--to store",
    "import plan": "--from postgresql://me@old/db",
    "import run": "--from postgresql://me@old/db",
    "import verify": "--from postgresql://me@old/db",
    "experiment bulk": "1",
    "experiment budget set": "--trials 3",
    "experiment edit": "--max-trials 3",
    "experiment set gc-policy": "--save-experiment-best 1 --save-trial-best 1 --save-trial-latest 1",
    "experiment set log-retention": "--forever",
    "resource-pool access grant": "--user x",
    "resource-pool access revoke": "--user x",
    "resource-pool set-default": "--compute",
    "trial download": "--best",
    "trial set log-retention": "--forever",
    "model move": "-w 1",
    "token budget set": "--trials 3",
    "workspace budget set": "--trials 3",
    "workspace edit": "--name x",
    "workspace bindings set": "-n x",
    "project edit": "--description x",
    "job update": "-p 1",
    "agent enable": "1",
    "agent disable": "1",
    "user edit": "--admin true",
    "user link-with-agent-user": "--agent-uid 1 --agent-user x --agent-gid 1 --agent-group x",
    "rbac assign-role": "-u x",
    "rbac unassign-role": "-g x",
    "token edit": "-d x",
    "webhook create": "--custom",
    "webhook edit": "--name x",
    "master config set": "--log.level INFO",
    "master cluster-message set": "-m x",
    "tensorboard start": "1",
}
"""Options that a command does not do without."""
EXAMPLES = {"workload_type": "experiment", "action": "pause", "operations": "1.priority=1"}


@pytest.mark.parametrize(
    "answer",
    [
        (404, {"message": "there is no such thing"}),
        (200, b"<html>this is something else</html>"),
    ],
    ids=["missing", "another-server"],
)
def test_refusal_of_any_command_is_a_sentence(
    cluster: Cluster, det: Det, answer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("max_restarts: 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(log_output, "_PAUSE_S", 0.01)
    cluster.default = answer
    for entry in ENTRIES:  # made once: that takes longer than what is looked at here
        monkeypatch.setattr(f"cli.{entry.module}.command", functools.partial(group_of, entry.module))
    for path in all_commands():
        command = resolve(path)
        if path.startswith(LOCAL) or hasattr(command, "commands"):
            continue
        monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
        result = det(*path.split(), *example_of(command, file), *FURTHER.get(path, "").split())
        if answer[0] != 200:  # else what reads no answer takes it for done
            assert result.code in (1, 3, 4), (path, result)
            assert result.err.strip(), path
        assert "Traceback" not in result.err, path
        assert "This is a bug" not in result.err, (path, result.err)


def example_of(command: Any, file: Path) -> Iterator[str]:
    """Words that the command takes."""
    for parameter in command.params:
        if parameter.param_type_name == "argument" and parameter.required:
            yield str(file) if "file" in parameter.name else EXAMPLES.get(parameter.name, "1")
        elif "--yes" in parameter.opts:
            yield "--yes"


def test_page_of_the_documentation_names_every_group() -> None:
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8").replace("\\|", "|")
    for entry in ENTRIES:
        synonyms = () if entry.name in LATER else entry.synonyms
        for name in (entry.shown.split()[0], *synonyms):
            assert f"`{name}`" in page or f"`{name} " in page, name
