"""Train the network of `model.py` under the Core API.

The searcher says how many epochs to train; after each epoch the metrics are reported, and the cluster may ask for the
slot back. A checkpoint holds all that the next epoch depends on, so that a resumed trial continues exactly as if it had
never stopped.
"""

from __future__ import annotations

from model import Network, load_data

import determined as det
from determined import core

# Used outside of a cluster: `python train.py`.
DEFAULT_HPARAMS = {"hidden_size": 64, "learning_rate": 0.003, "alpha": 0.0001, "batch_size": 32}


def main(core_context: core.Context) -> None:
    """Train as far as the searcher wants."""
    info = det.get_cluster_info()
    hparams = info.trial.hparams if info else DEFAULT_HPARAMS
    network = Network(hparams, seed=info.trial.trial_seed if info else 0)
    if info is not None and info.latest_checkpoint is not None:
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            network = Network.load(path)
        print(f"resumed from {info.latest_checkpoint} after {network.epochs} epochs", flush=True)
    train_set, held_out = load_data()

    def save() -> None:
        with core_context.checkpoint.store_path({"steps_completed": network.epochs}) as (path, _):
            network.save(path)

    saved_epochs = network.epochs
    for op in core_context.searcher.operations():
        accuracy = None
        while network.epochs < op.length:
            loss = network.train_one_epoch(*train_set)
            accuracy = network.accuracy(*held_out)
            core_context.train.report_training_metrics(network.epochs, {"loss": loss})
            core_context.train.report_validation_metrics(network.epochs, {"accuracy": accuracy})
            op.report_progress(network.epochs)
            print(f"epoch {network.epochs}: loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
            if network.epochs < op.length and core_context.preempt.should_preempt():
                save()
                return
        if accuracy is None:
            # Trained this far before a restart; its validation may have been lost with the process.
            accuracy = network.accuracy(*held_out)
            core_context.train.report_validation_metrics(network.epochs, {"accuracy": accuracy})
        if network.epochs > saved_epochs:
            save()
            saved_epochs = network.epochs
        op.report_completed(accuracy)
        if core_context.preempt.should_preempt():
            return


if __name__ == "__main__":
    with core.init() as context:
        main(context)
