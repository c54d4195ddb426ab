"""The rules of Prometheus, as its own tool reads them and tries them out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.programs import REPOSITORY, promtool

FOLDER = REPOSITORY / "deploy" / "monitoring"


@pytest.mark.long  # promtool is compiled with all that Prometheus knows of
@pytest.mark.parametrize(
    "what", [("check", "rules", "--lint-fatal", FOLDER / "alerts.yaml"), ("test", "rules", FOLDER / "alerts.test.yaml")]
)
def test_rules_are_sound_and_fire_when_they_are_to(what: tuple[str | Path, ...]) -> None:
    done = subprocess.run([promtool(), *what], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "SUCCESS" in done.stdout) == (0, True), done.stdout + done.stderr


def test_every_rule_has_a_case_that_fires() -> None:
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    names = {rule["alert"] for group in rules for rule in group["rules"]}
    cases = yaml.safe_load((FOLDER / "alerts.test.yaml").read_text())["tests"]
    fired = {case["alertname"] for test in cases for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert names - fired == set()
