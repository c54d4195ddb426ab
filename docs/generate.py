"""Writes the generated parts of the documentation, or with `--check` says which of them are out of date."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from api.settings import ApiSettings
from docs import actions, cli_page, compatibility_page, config_page, training_page
from workers import configuration
from workers.settings import AgentSettings, GatewaySettings, OrchestratorSettings
from workflows.config import experiment_config_json_schema
from workflows.lifecycle import allocation, experiment, trial

HERE = Path(__file__).resolve().parent / "reference"


def schema() -> str:
    """The experiment configuration as JSON Schema, for editors."""
    return json.dumps(experiment_config_json_schema(), indent=2) + "\n"


def states() -> str:
    """The states of experiments, trials and allocations as diagrams."""
    lines = [
        "# States",
        "",
        "Generated from `workflows/lifecycle/`. No code sets a state that is not reached from here.",
        "",
    ]
    shown: list[tuple[str, Mapping[Any, Iterable[Any]], list[str]]] = [
        ("an experiment", experiment.TRANSITIONS, ["PAUSED", "ACTIVE"]),
        ("a trial", trial.TRANSITIONS, ["PAUSED", "ACTIVE"]),
        ("an allocation", allocation.TRANSITIONS, ["PENDING"]),
    ]
    for title, transitions, first in shown:
        lines += [f"## Of {title}", "", "```mermaid", "stateDiagram-v2"]
        lines += [f"    [*] --> {state}" for state in first]
        for state, targets in transitions.items():
            lines += [f"    {state.value} --> {target.value}" for target in sorted(targets)]
        lines += ["```", ""]
    return "\n".join(lines)


def settings() -> str:
    """The settings of the server processes."""
    lines = ["# Settings", "", "Generated from the settings models. Each is an environment variable.", ""]
    for title, model in (
        ("API", ApiSettings),
        ("Orchestrator", OrchestratorSettings),
        ("Gateway", GatewaySettings),
        ("Agent", AgentSettings),
    ):
        lines += [f"## {title}", "", "| variable | default | meaning |", "| --- | --- | --- |"]
        for name, info in model.model_fields.items():
            if info.default_factory is not None:
                default = "see the model"
            elif info.default is PydanticUndefined:
                default = "required"
            else:
                default = f"`{info.default}`"
            lines.append(f"| `UNDETERRED_{name.upper()}` | {default} | {info.description} |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Write or check; returns the exit code."""
    wanted = {"experiment-config.schema.json": schema(), "states.md": states(), "settings.md": settings()}
    wanted["configuration.schema.json"] = json.dumps(configuration.schema(), indent=2) + "\n"
    wanted |= {"cli.md": cli_page.page(), "config.md": config_page.page()}
    wanted["pages.md"] = actions.page()
    wanted["training-apis.md"] = training_page.page()
    wanted["../compatibility.md"] = compatibility_page.page()
    stale = [name for name, text in wanted.items() if not _is(HERE / name, text)]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"docs/reference/{name} is out of date: run `make docs`", file=sys.stderr)  # noqa: T201
        return 1 if stale else 0
    HERE.mkdir(exist_ok=True)
    for name in stale:
        (HERE / name).write_text(wanted[name])
    return 0


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
