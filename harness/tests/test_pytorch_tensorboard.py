"""What several ranks of a trial leave for TensorBoard; spec training-apis.md §2.1, container-contract.md §10."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from .pytorch_trials import Jobs
from .test_pytorch_trainer import Fit


def test_files_of_all_ranks_are_copied_and_event_files_of_the_chief(trial: Any, tmp_path: Path) -> None:
    Fit(trial)
    trial.slot_ids = [0, 1]
    trial.write_info()
    host = socket.gethostname()
    names = ["events.out.tfevents.1.mine", f"{host}_12.pt.trace.json", "notes.txt"]
    jobs = Jobs()
    try:
        codes = jobs.run(
            2,
            folder=str(trial.run_dir),
            hparams={"global_batch_size": 4, "tensorboard": names},
            latest=None,
            fit={"max_length": 2, "checkpoint_policy": "none"},
            every=1,
            out=str(tmp_path / "out"),
        )
    finally:
        jobs.close()
    assert codes == [0, 0], [file.read_text() for file in tmp_path.glob("out.error.*")]
    folder = trial.storage / "cluster" / "tensorboard" / "experiment" / "3" / "trial" / "7"
    assert (folder / names[0]).read_text() == "of rank 0"
    assert (folder / names[1]).read_text() == "of rank 0"
    assert (folder / f"{host}#1_12.pt.trace.json").read_text() == "of rank 1"
    assert (folder / names[2]).exists()
    assert len([path for path in folder.iterdir() if path.name not in names and "tfevents" in path.name]) == 1
