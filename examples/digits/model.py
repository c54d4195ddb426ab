"""A small neural network on scikit-learn's handwritten digits, in numpy.

Importing scikit-learn's own networks takes longer than training one of these, so only its data set is used.
"""

# ruff: noqa: E402 - the number of threads must be set before numpy is imported

from __future__ import annotations

import os

# One slot is one core: without this, each trial would start a thread per core of the machine and slow the others down.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import gzip
import importlib.util
import json
import pathlib
from typing import Any

import numpy as np

CLASSES = 10
# The same for every trial and every run, so that accuracies can be compared: 1,347 images to train on, 450 held out.
SPLIT_SEED = 20230
HELD_OUT = 450
ARRAYS_FILE = "arrays.npz"
STATE_FILE = "state.json"

Images = tuple[np.ndarray, np.ndarray]


def load_data() -> tuple[Images, Images]:
    """((images, labels) to train on, (images, labels) held out); an image is 64 floats from 0 to 1."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise SystemExit("this example needs the digits of scikit-learn: pip install scikit-learn")
    # What sklearn.datasets.load_digits() reads; importing that would take 2 s.
    with gzip.open(pathlib.Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as f:
        table = np.loadtxt(f, delimiter=",", dtype=np.float32)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(table))
    images, labels = table[order, :-1] / 16, table[order, -1].astype(np.int64)
    return (images[HELD_OUT:], labels[HELD_OUT:]), (images[:HELD_OUT], labels[:HELD_OUT])


class Network:
    """One hidden layer, trained with Adam. Holds all that the next epoch depends on."""

    def __init__(self, hparams: dict[str, Any], seed: int, inputs: int = 64) -> None:
        self.hparams = hparams
        self.epochs = 0
        self.steps = 0
        self.rng = np.random.default_rng(seed)
        hidden = int(hparams["hidden_size"])
        self.weights = {
            "w1": self.rng.normal(0, np.sqrt(2 / inputs), (inputs, hidden)),
            "b1": np.zeros(hidden),
            "w2": self.rng.normal(0, np.sqrt(2 / hidden), (hidden, CLASSES)),
            "b2": np.zeros(CLASSES),
        }
        self.mean = {name: np.zeros_like(w) for name, w in self.weights.items()}
        self.square = {name: np.zeros_like(w) for name, w in self.weights.items()}

    def train_one_epoch(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Train on all images once, in a new order; returns the mean loss."""
        batch_size = int(self.hparams["batch_size"])
        order = self.rng.permutation(len(labels))
        batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        losses = [self._train_on(images[batch], labels[batch]) for batch in batches]
        self.epochs += 1
        return float(np.mean(losses))

    def accuracy(self, images: np.ndarray, labels: np.ndarray) -> float:
        """The share of images whose digit is recognized."""
        _, scores = self._forward(images)
        return float(np.mean(scores.argmax(axis=1) == labels))

    def save(self, folder: pathlib.Path) -> None:
        """Write everything, the state of the random generator included: resuming changes no result."""
        parts = {"weights": self.weights, "mean": self.mean, "square": self.square}
        np.savez(folder / ARRAYS_FILE, **{f"{p}.{n}": a for p, arrays in parts.items() for n, a in arrays.items()})
        state = {
            "hparams": self.hparams,
            "epochs": self.epochs,
            "steps": self.steps,
            "rng": self.rng.bit_generator.state,
        }
        (folder / STATE_FILE).write_text(json.dumps(state))

    @classmethod
    def load(cls, folder: pathlib.Path) -> Network:
        """What `save` wrote."""
        state = json.loads((folder / STATE_FILE).read_text())
        self = cls(state["hparams"], seed=0)
        self.epochs, self.steps = state["epochs"], state["steps"]
        self.rng.bit_generator.state = state["rng"]
        with np.load(folder / ARRAYS_FILE) as arrays:
            for name in self.weights:
                self.weights[name] = arrays[f"weights.{name}"]
                self.mean[name] = arrays[f"mean.{name}"]
                self.square[name] = arrays[f"square.{name}"]
        return self

    def _forward(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hidden = np.maximum(images @ self.weights["w1"] + self.weights["b1"], 0)
        return hidden, hidden @ self.weights["w2"] + self.weights["b2"]

    def _train_on(self, images: np.ndarray, labels: np.ndarray) -> float:
        hidden, scores = self._forward(images)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances = scores / scores.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = -np.log(chances[rows, labels] + 1e-12).mean()
        chances[rows, labels] -= 1
        chances /= len(labels)
        back = (chances @ self.weights["w2"].T) * (hidden > 0)
        decay = float(self.hparams["alpha"])
        self._adam(
            {
                "w1": images.T @ back + decay * self.weights["w1"],
                "b1": back.sum(axis=0),
                "w2": hidden.T @ chances + decay * self.weights["w2"],
                "b2": chances.sum(axis=0),
            }
        )
        return float(loss)

    def _adam(self, gradients: dict[str, np.ndarray], beta1: float = 0.9, beta2: float = 0.999) -> None:
        self.steps += 1
        rate = float(self.hparams["learning_rate"]) * np.sqrt(1 - beta2**self.steps) / (1 - beta1**self.steps)
        for name, gradient in gradients.items():
            self.mean[name] = beta1 * self.mean[name] + (1 - beta1) * gradient
            self.square[name] = beta2 * self.square[name] + (1 - beta2) * gradient**2
            self.weights[name] -= rate * self.mean[name] / (np.sqrt(self.square[name]) + 1e-8)
