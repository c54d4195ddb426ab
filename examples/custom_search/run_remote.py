"""Run the search on the cluster: `det experiment create remote.yaml .`"""

from __future__ import annotations

import logging
import sys

from asha import Asha

import determined as det
from determined import core, searcher


def main(core_context: core.Context) -> None:
    """Search, and fail if the search did not complete."""
    runner = searcher.RemoteSearchRunner(Asha(), context=core_context)
    experiment_id = runner.run("custom.yaml", model_dir="train")
    if not runner.state.experiment_completed:
        sys.exit(f"experiment {experiment_id} did not complete")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    with core.init() as context:
        main(context)
