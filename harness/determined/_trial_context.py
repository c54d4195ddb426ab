"""What the contexts of all training APIs have in common, and the classes that old code derives from."""

from __future__ import annotations

import logging

from determined import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pathlib
    from typing import Any

    from determined.core import Context

logger = logging.getLogger("determined")


class TrialContext:
    """What a trial class knows about its run: hyperparameters, batch sizes, configuration, its place among the ranks.

    Made by the training API (`pytorch.init()` and the like).

    Raises:
        InvalidExperimentException: `hparams["global_batch_size"]` is no integer, or smaller than the number of slots.
    """

    def __init__(
        self,
        core_context: Context,
        trial_seed: int | None,
        hparams: dict[str, Any] | None,
        slots_per_trial: int,
        num_gpus: int,
        exp_conf: dict[str, Any] | None,
        steps_completed: int = 0,
        managed_training: bool = False,
        debug_enabled: bool = False,
        enable_tensorboard_logging: bool = True,
    ) -> None:
        self._core = core_context
        self.distributed = core_context.distributed
        self._trial_seed = trial_seed
        self._hparams = hparams
        self._slots = slots_per_trial
        self._num_gpus = num_gpus
        self._exp_conf = exp_conf
        self._steps_completed = steps_completed
        self._managed_training = managed_training
        self._debug_enabled = debug_enabled
        self._enable_tensorboard_logging = enable_tensorboard_logging
        self._stop_requested = False
        self._per_slot_batch_size, self._global_batch_size = _batch_sizes(hparams or {}, slots_per_trial)

    def get_experiment_config(self) -> dict[str, Any]:
        """The experiment's configuration. Raises: ValueError, if there is none: pass `exp_conf` to `init()`."""
        if self._exp_conf is None:
            raise ValueError("there is no experiment's configuration outside of a cluster: pass exp_conf to init()")
        return self._exp_conf

    def get_data_config(self) -> dict[str, Any]:
        """The section `data` of the experiment's configuration; empty if there is none."""
        return self.get_experiment_config().get("data") or {}

    def get_experiment_id(self) -> int:
        """The experiment's id; 0 outside of a cluster."""
        return self._core.info.trial.experiment_id if self._is_trial() else 0  # type: ignore[union-attr]

    def get_trial_id(self) -> int:
        """The trial's id; 0 outside of a cluster."""
        return self._core.info.trial.trial_id if self._is_trial() else 0  # type: ignore[union-attr]

    def _is_trial(self) -> bool:
        return self._core.info is not None and self._core.info.task_type in ("TRIAL", "LOCAL")

    def get_trial_seed(self) -> int:
        """The trial's seed. Raises: InternalException, outside of a cluster."""
        if self._trial_seed is None:
            raise errors.InternalException("there is no trial seed outside of a cluster")
        return self._trial_seed

    def get_hparams(self) -> dict[str, Any]:
        """The hyperparameters. Raises: ValueError, if none were given to `init()`."""
        if self._hparams is None:
            raise ValueError(
                "there are no hyperparameters: pass them to init(), on a cluster "
                "hparams=det.get_cluster_info().trial.hparams"
            )
        return self._hparams

    def get_hparam(self, name: str) -> Any:
        """One hyperparameter. Raises: ValueError, if it does not exist."""
        hparams = self.get_hparams()
        if name not in hparams:
            raise ValueError(
                f"there is no hyperparameter {name!r}: expected one of {', '.join(sorted(hparams)) or '-'}"
            )
        if name == "global_batch_size":
            logger.warning(
                "get_hparam('global_batch_size') is that of all slots: use context.get_per_slot_batch_size() for a "
                "data loader, and context.get_global_batch_size() for the size that is trained with"
            )
        return hparams[name]

    def get_per_slot_batch_size(self) -> int:
        """How many records of a batch one slot trains. Raises: ValueError, without `global_batch_size`."""
        return self._batch_size(self._per_slot_batch_size)

    def get_global_batch_size(self) -> int:
        """How many records of a batch all slots train together. Raises: ValueError, without `global_batch_size`."""
        return self._batch_size(self._global_batch_size)

    def _batch_size(self, value: int | None) -> int:
        if value is None:
            raise ValueError("there is no batch size: set the hyperparameter global_batch_size, or pass it to init()")
        return value

    def get_initial_batch(self) -> int:
        """How many batches were trained before this process started."""
        return self._steps_completed

    def get_stop_requested(self) -> bool:
        """Whether the training is to stop."""
        return self._stop_requested

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Stop the training of all ranks at the next report, with a checkpoint. Raises: AssertionError, for no bool."""
        if not isinstance(stop_requested, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise AssertionError(f"set_stop_requested({stop_requested!r}): expected True or False")
        self._stop_requested = stop_requested

    def get_tensorboard_path(self) -> pathlib.Path:
        """The folder for files that TensorBoard shall read."""
        return self._core.train.get_tensorboard_path()

    def get_enable_tensorboard_logging(self) -> bool:
        """Whether metrics are written for TensorBoard without being asked."""
        return self._enable_tensorboard_logging

    def set_enable_tensorboard_logging(self, enable_tensorboard_logging: bool) -> None:
        """Switch it on or off before training begins. Raises: AssertionError, for no bool."""
        if not isinstance(enable_tensorboard_logging, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise AssertionError(f"set_enable_tensorboard_logging({enable_tensorboard_logging!r}): expected a bool")
        self._enable_tensorboard_logging = enable_tensorboard_logging


def _batch_sizes(hparams: dict[str, Any], slots: int) -> tuple[int | None, int | None]:
    """Per slot, and of all slots. The latter is what the slots really train: rounded down."""
    wanted = hparams.get("global_batch_size")
    if not wanted:
        return None, None
    if not isinstance(wanted, int) or isinstance(wanted, bool):
        raise errors.InvalidExperimentException(
            f"hyperparameters.global_batch_size is {wanted!r}, but must be an integer"
        )
    if wanted < slots:
        raise errors.InvalidExperimentException(
            f"hyperparameters.global_batch_size is {wanted}, but must be {slots} or more: each slot trains one "
            "record of a batch at least"
        )
    each = wanted // slots
    if each * slots != wanted:
        logger.warning(
            f"global_batch_size {wanted} can't be shared by {slots} slots: each trains {each}, {each * slots} in all"
        )
    return each, each * slots


class LegacyTrial:
    """Base of the trial classes of old, for `isinstance` and for annotations."""

    trial_controller_class: Any = None
    trial_context_class: Any = None


class EnvContext:
    """What old code reads of its environment. Made by nobody here: a context has all of it.

    Attributes:
        experiment_config: The experiment's configuration.
        hparams: The hyperparameters.
    """

    def __init__(self, experiment_config: dict[str, Any], hparams: dict[str, Any], trial_seed: int = 0) -> None:
        self.experiment_config = experiment_config
        self.hparams = hparams
        self.trial_seed = trial_seed

    @property
    def global_batch_size(self) -> int | None:
        """As `TrialContext.get_global_batch_size`, on one slot."""
        return _batch_sizes(self.hparams, 1)[1]

    @property
    def per_slot_batch_size(self) -> int | None:
        """As `TrialContext.get_per_slot_batch_size`, on one slot."""
        return _batch_sizes(self.hparams, 1)[0]


class TrialController:
    """Base of the controllers of old, for annotations: `determined.pytorch.Trainer` does their work."""
