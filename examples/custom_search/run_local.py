"""Run the search from this machine: `python run_local.py`. Interrupt it, start it again: it goes on."""

from __future__ import annotations

import logging
from pathlib import Path

from asha import Asha

from determined import searcher

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Search, and say how it ended."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    runner = searcher.LocalSearchRunner(Asha(), searcher_dir=Path("asha-search"))
    experiment_id = runner.run(str(HERE / "custom.yaml"), model_dir=str(HERE / "train"))
    trials = len(runner.state.trials_closed)
    ending = "completed" if runner.state.experiment_completed else "did not complete"
    print(f"experiment {experiment_id} {ending} after {trials} trials, {len(runner.state.failures)} of them failed")


if __name__ == "__main__":
    main()
