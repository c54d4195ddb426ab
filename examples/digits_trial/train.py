"""The same training as a script, on a cluster and by hand: `python3 train.py`."""

from __future__ import annotations

import logging

from model_def import DigitsTrial

import determined as det
from determined import pytorch

HPARAMS = {"global_batch_size": 32, "learning_rate": 0.002, "dropout": 0.25}

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    info = det.get_cluster_info()
    with pytorch.init(hparams=info.trial.hparams if info else HPARAMS) as context:
        trainer = pytorch.Trainer(DigitsTrial(context), context)
        trainer.fit(
            max_length=pytorch.Epoch(3),
            validation_period=pytorch.Epoch(1),
            reporting_period=pytorch.Batch(20),
            latest_checkpoint=info.latest_checkpoint if info else None,
        )
