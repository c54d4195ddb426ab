"""The contracts about who may import whom catch what they are for: each gets a module that breaks it."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.servers import REPOSITORY

#: By contract: a module that is planted, and what it imports.
PLANTED = {
    "pure": ("workflows/config/planted_pure.py", "import temporalio.client"),
    "pure-order": ("workflows/lifecycle/planted_order.py", "import workflows.searchers"),
    "workflows": ("workflows/planted_workflows.py", "import database.models"),
    "database": ("database/planted_database.py", "import temporalio.client"),
    "activities": ("activities/planted_activities.py", "import workflows.autoscaler"),
    "api": ("api/services/planted_api.py", "import workflows.cleanup"),
    "cli": ("cli/planted_cli.py", "import workflows.messages"),
    "temporal-in-api": ("api/services/planted_temporal.py", "import temporalio.client"),
    "layers": ("database/planted_layers.py", "import workers.settings"),
    "api-layers": ("api/queries/planted_layers.py", "import api.services.users"),
    "harness": ("harness/determined/planted_harness.py", "import workflows.names"),
    "acyclic": ("workflows/planted_circle.py", "import workflows.planted_circles"),
}
_CIRCLE = ("workflows/planted_circles.py", "import workflows.planted_circle")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What import-linter says of a copy of the code with all of them."""
    copy = tmp_path_factory.mktemp("contracts")
    for package in ("workflows", "activities", "database", "api", "cli", "workers", "harness/determined"):
        shutil.copytree(REPOSITORY / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / ".importlinter", copy)
    for path, line in (*PLANTED.values(), _CIRCLE):
        (copy / path).write_text(f'"""Planted."""\n\n{line}\n')
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--verbose"],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": f"{copy}:{copy / 'harness'}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("contract", PLANTED)
def test_contract_is_broken_when_a_module_breaks_it(told: str, contract: str) -> None:
    contracts = configparser.ConfigParser()
    contracts.read(REPOSITORY / ".importlinter")
    name = contracts[f"importlinter:contract:{contract}"]["name"]
    assert re.search(rf"^{re.escape(name)} BROKEN", told, re.MULTILINE), told
    broken = told.partition("Broken contracts")[2]
    section = re.split(rf"^{re.escape(name)}\n-+\n", broken, maxsplit=1, flags=re.MULTILINE)[1]
    module = Path(PLANTED[contract][0]).stem
    assert module in re.split(r"^-{5,}\n", section, maxsplit=1, flags=re.MULTILINE)[0]


def test_every_contract_has_its_planted_module() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(REPOSITORY / ".importlinter")
    assert {name.rpartition(":")[2] for name in contracts.sections() if ":contract:" in name} == set(PLANTED)
