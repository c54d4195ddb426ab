"""What a `TFKerasTrial` does where TensorFlow is installed; `make soak-versions` runs it, on TensorFlow's backend."""

from __future__ import annotations

from typing import Any

import pytest

from . import keras_trials  # before Keras: it names the backend

# isort: split
import tensorflow as tf

from determined import errors

from .test_keras_trial import Runs

pytestmark = pytest.mark.filterwarnings("ignore")


def dataset() -> Any:
    """Features and what is to be learned, shuffled anew in each pass."""
    return tf.data.Dataset.from_tensor_slices(keras_trials.arrays()).shuffle(22, seed=7)


class WithDataset(keras_trials.Exact):
    """Trains on a dataset."""

    def build_training_data_loader(self) -> Any:
        return self.context.wrap_dataset(dataset()).batch(4, drop_remainder=True)

    def build_validation_data_loader(self) -> Any:
        return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(keras_trials.arrays(8))).batch(4)


class Unwrapped(WithDataset):
    """Trains on one that it does not tell of."""

    def build_training_data_loader(self) -> Any:
        return dataset().batch(4)


@pytest.fixture
def runs(trial: Any) -> Runs:
    return Runs(trial)


def test_run_goes_on_within_a_dataset(runs: Runs) -> None:
    runs(WithDataset)
    undisturbed = runs.digest()
    checkpoints = [call.body["uuid"] for call in runs.master.of("POST /api/v1/checkpoints")]
    assert runs.checkpoints() == [3, 6, 9, 12, 13]
    runs.master.calls.clear()
    runs.cluster.completed.clear()
    runs.cluster.latest_checkpoint = checkpoints[1]
    runs(WithDataset)
    assert runs.checkpoints() == [9, 12, 13]
    assert runs.digest() == undisturbed


def test_dataset_that_is_not_wrapped_is_refused(runs: Runs) -> None:
    with pytest.raises(errors.InvalidExperimentException, match="returned a tf.data.Dataset that is not wrapped: use"):
        runs(Unwrapped)
