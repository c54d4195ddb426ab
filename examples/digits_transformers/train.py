"""Train a small vision transformer on scikit-learn's handwritten digits with the Trainer of `transformers`.

It runs as it is: by hand (`python train.py`), and as a trial (`const.yaml`). The model is made from its configuration:
nothing is downloaded.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from sklearn.datasets import load_digits

import determined as det
from determined import core
from determined.transformers import DetCallback

# Used outside of a cluster.
DEFAULT_HPARAMS: dict[str, Any] = {"learning_rate": 0.003, "batch_size": 64, "epochs": 10}


def load_data() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Images (1, 8, 8) from 0 to 1 with their labels: 1,437 to train on, then 360 to validate with."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    pixels = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    rows = [{"pixel_values": pixels[i], "labels": int(labels[i])} for i in order]
    return rows[:1437], rows[1437:]


def build_model() -> transformers.ViTForImageClassification:
    """Two layers over sixteen patches of 2 by 2 pixels."""
    config = transformers.ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        hidden_dropout_prob=0.1,
        num_labels=10,
    )
    return transformers.ViTForImageClassification(config)


def accuracy(predictions: transformers.EvalPrediction) -> dict[str, float]:
    """The part of the images that is recognized."""
    return {"accuracy": float((predictions.predictions.argmax(-1) == predictions.label_ids).mean())}


def main(core_context: core.Context) -> None:
    """Train as far as the configuration says."""
    info = det.get_cluster_info()
    hparams = info.trial.hparams if info else DEFAULT_HPARAMS
    args = transformers.TrainingArguments(
        output_dir="output",
        learning_rate=hparams["learning_rate"],
        per_device_train_batch_size=hparams["batch_size"],
        num_train_epochs=hparams["epochs"],
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=20,
        report_to=[],
        seed=info.trial.trial_seed if info else 0,
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    transformers.set_seed(args.seed)
    train, held_out = load_data()
    trainer = transformers.Trainer(
        model=build_model(),
        args=args,
        train_dataset=train,
        eval_dataset=held_out,
        compute_metrics=accuracy,
        callbacks=[DetCallback(core_context, args)] if info else [],
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the model is too small for more
    with core.init() as context:
        main(context)
