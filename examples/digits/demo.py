"""The demo: start the cluster, run a real search, show and use its best trial.

`make demo` runs it; it only does what a user would do: `det` commands and a few lines of the SDK.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# what trials run in by default: it has the libraries that the example trains with
TRIAL_PYTHON = os.environ.get("UNDETERRED_TRIAL_PYTHON") or ROOT / ".venv-trial" / "bin" / "python"


def det(*arguments: str) -> int:
    """Run a `det` command, shown as typed."""
    print(f"\n$ det {' '.join(arguments)}", flush=True)
    return subprocess.call([sys.executable, "-m", "cli", *arguments])


def main() -> int:
    """Run the demo; returns its exit code."""
    port = os.environ.get("UNDETERRED_PORT")
    if port:
        os.environ.setdefault("DET_MASTER", f"http://localhost:{port}")
    began = time.monotonic()
    if code := det("up", "--launcher", os.environ.get("UNDETERRED_LAUNCHER", "process")):
        return code
    shown = os.path.relpath(HERE)
    if code := det("experiment", "create", f"{shown}/adaptive.yaml", shown, "--follow"):
        return code

    from determined.experimental import client

    experiment = client.list_experiments()[-1]
    best = experiment.top_checkpoint()
    trial = client.get_trial(best.training.trial_id)
    print(f"\nBest of {len(experiment.list_trials())} trials: trial {trial.id}, with")
    for name, value in sorted(trial.hparams.items()):
        print(f"  {name:14} {value:.6g}" if isinstance(value, float) else f"  {name:14} {value}")
    accuracy = best.training.validation_metrics["avgMetrics"]["accuracy"]
    print(f"  validation accuracy {accuracy:.4f}")

    path = best.download(str(Path(os.environ.get("TMPDIR", "/tmp")) / f"undeterred-demo-{best.uuid}"))
    print(f"\nIts checkpoint, downloaded with the SDK: {path}")
    done = subprocess.run([TRIAL_PYTHON, HERE / "evaluate.py", path], check=False)
    if done.returncode:
        return done.returncode
    address = os.environ.get("DET_MASTER", "http://localhost:8080")
    print(f"\nLook at the search: {address}/det/experiments/{experiment.id}")
    print(f"\nAll of it took {time.monotonic() - began:.0f} s. What to type next:")
    for command, meaning in (
        (f".venv/bin/det trial logs {trial.id}", "what the best trial printed"),
        (f".venv/bin/det experiment list-checkpoints {experiment.id}", "all checkpoints with their accuracy"),
        (f".venv/bin/det experiment create {shown}/const.yaml {shown} --follow", "train one model"),
        (".venv/bin/det down", "stop the cluster; `.venv/bin/det up` goes on where it was"),
    ):
        print(f"  {command:68} {meaning}")
    if accuracy < 0.95:
        print(f"The best accuracy is {accuracy:.4f}, expected 0.95 or better.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nInterrupted. The cluster and the search go on; `.venv/bin/det down` stops them.", file=sys.stderr)
        sys.exit(130)
