"""The published SDK, as a program of the published client's Python."""

from __future__ import annotations

import json
from pathlib import Path

from tests.compat.published import MODEL, PASSWORD, Published, experiment_config
from tests.compat.record import WORKS

PROGRAMS = Path(__file__).with_name("programs")


def test_tour_of_the_sdk(client: Published, tmp_path: Path) -> None:
    storage = {"type": "shared_fs", "host_path": str(tmp_path / "storage"), "save_trial_latest": 5}
    config = client.write("tour.json", experiment_config(client.generation, checkpoint_storage=storage))
    run_steps(client, "SDK", "sdk.py", client.proxy.url, PASSWORD, config, str(MODEL), str(tmp_path))


def run_steps(client: Published, title: str, program: str, *words: str) -> None:
    """Run a program, record its steps, and tell every one that failed."""
    done = client.run("python", str(PROGRAMS / program), *words, timeout_s=120)
    steps = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("STEP ")]
    assert done.returncode == 0, done.stdout + done.stderr
    assert steps, done.stdout + done.stderr
    problems: list[str] = []
    for step in steps:
        error: str | None = step["error"]
        result = f"fails: {error.strip().splitlines()[-1][:300]}" if error else WORKS
        client.record.program(client.generation, f"{title}: {step['name']}", result)
        if error:
            problems.append(f"{step['name']}: {error}")
    assert not problems, "\n".join(["", *problems])
