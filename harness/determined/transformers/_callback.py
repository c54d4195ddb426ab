"""`DetCallback`. Source: spec training-apis.md §9."""

from __future__ import annotations

import json
import logging
import os
from typing import cast

import transformers
from transformers.trainer_utils import (
    IntervalStrategy,
    get_last_checkpoint,  # pyright: ignore[reportUnknownVariableType]
)

from determined import errors
from determined._operations import (
    Operations,
    PercentProgress,
    check_metrics,
    configured_length,
    length_by_time,
    required_metrics,
    searcher_config,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from transformers import TrainerControl, TrainerState, TrainingArguments

    from determined import core

EVAL = "eval_"
TEST = "test_"
TRAIN = "train_"
_MEASURES_OF_SPEED = ("_runtime", "_per_second", "_compilation_time")
_logger = logging.getLogger("determined.transformers")


class DetCallback(transformers.TrainerCallback):
    """Connects a `transformers.Trainer` with the cluster.

    - Metrics: what the Trainer logs is reported, as training or, with names that begin with `eval_`, as validation.
    - Checkpoints: each that the Trainer saves is stored. The last step of a training is always evaluated and saved.
    - Resuming: the trial's latest checkpoint is fetched at once, and `args.resume_from_checkpoint` names it.
    - Preemption: asked for after each step; the Trainer then saves and ends.
    - The searcher: with `searcher.max_length`, each of its operations is followed.

    Args:
        core_context: What `core.init()` gave.
        args: The Trainer's own arguments.
        filter_metrics: Only metrics whose names contain one of these are reported, and those that the searcher needs.
        user_data: Stored with each checkpoint as `my_data.json`.

    Raises:
        RuntimeError: There is no cluster.
        ValueError: `searcher.max_length` or `max_time` contradicts the length in `args`.
        InvalidCheckpointException: The trial's latest checkpoint is none of the Trainer's.
    """

    def __init__(
        self,
        core_context: core.Context,
        args: TrainingArguments,
        filter_metrics: Sequence[str] | None = None,
        user_data: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if core_context.info is None:
            raise RuntimeError(
                "DetCallback works on a cluster only, and this process was not started by one: leave it out of the "
                "Trainer's callbacks when determined.get_cluster_info() is None"
            )
        self.core_context = core_context
        self.user_data = user_data
        config = searcher_config(core_context)
        self._searcher_metric = str(config.get("metric") or "")
        self._required = required_metrics(config)
        self.filter_metrics = None if filter_metrics is None else [*filter_metrics, *self._required]
        self._operations = _checked_operations(core_context, config, args)
        self._progress = PercentProgress(core_context)
        self._is_training = False
        self._is_preempted = False
        self._has_warned = False
        self._reported: dict[str, int] = {}
        self._validation: dict[str, Any] = {}
        """Of the step that was evaluated last; several data sets come one after the other."""
        self._evaluated_at = -1
        self._saved_at = -1
        self.load_last_checkpoint(args)

    def load_last_checkpoint(self, args: TrainingArguments) -> None:
        """Fetch the trial's latest checkpoint into `args.output_dir`, and name it in `args.resume_from_checkpoint`.

        Without one, and with `args.overwrite_output_dir`, nothing happens.
        """
        info = self.core_context.info
        uuid = info.latest_checkpoint if info is not None else None
        if uuid is None or getattr(args, "overwrite_output_dir", False):
            return
        folder = str(args.output_dir)
        self.core_context.checkpoint.download(uuid, folder)
        found = _stored_step(folder) or cast("str | None", get_last_checkpoint(folder))
        if found is None:
            raise errors.InvalidCheckpointException(
                f"checkpoint {uuid} has no folder checkpoint-<step>, as a Trainer saves it: DetCallback can't resume "
                "from it"
            )
        args.resume_from_checkpoint = found
        _logger.info(f"resuming from {found} of checkpoint {uuid}")

    # -- metrics ------------------------------------------------------------------------------------------------------

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Report what the Trainer logs."""
        if not logs:
            return
        kind = get_metric_type(logs)
        if kind == TEST:
            if not self._has_warned:
                self._has_warned = True
                _logger.warning(f"metrics of a test are not reported: {', '.join(sorted(logs))}")
            return
        metrics = self._selected(logs)
        if kind == TRAIN:
            self._report(TRAIN, state, metrics)
            return
        if self._evaluated_at != state.global_step:
            self._validation = {}
        self._validation.update(metrics)
        self._evaluated_at = state.global_step
        if not self._is_training:
            self._report_validation(state)

    def _selected(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        names = [name for name in logs if name != "epoch" and not name.endswith(_MEASURES_OF_SPEED)]
        if self.filter_metrics is not None:
            names = [name for name in names if any(part in name for part in self.filter_metrics)]
        names += [name for name in self._required if name in logs and name not in names]
        return {name: logs[name] for name in names}

    def _report(self, kind: str, state: TrainerState, metrics: dict[str, Any]) -> None:
        if self._reported.get(kind) == state.global_step or not metrics:
            return
        self._reported[kind] = state.global_step
        metrics = {**metrics, "batches": state.global_step, "epochs": state.epoch or 0.0}
        if kind == EVAL:
            check_metrics(self._required, metrics, "of this evaluation")
        if not state.is_world_process_zero:
            return
        if kind == EVAL:
            self.core_context.train.report_validation_metrics(state.global_step, metrics)
        else:
            self.core_context.train.report_training_metrics(state.global_step, metrics)

    def _report_validation(self, state: TrainerState) -> None:
        if self._evaluated_at == state.global_step:
            self._report(EVAL, state, self._validation)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ask the searcher how far to train, and see to it that all of a resumed model is that of the checkpoint."""
        self._is_training = True
        if state.global_step and args.resume_from_checkpoint:
            _load_what_is_missing(kwargs.get("model"), str(args.resume_from_checkpoint))
        if not self._operations.begin():
            _logger.info("the searcher wants nothing more of this trial")
            control.should_training_stop = True

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report the evaluation before this step."""
        self._report_validation(state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Ask whether to make room, and have the last step of an operation evaluated and saved."""
        if state.max_steps > 0:
            self._progress.report(state.global_step / state.max_steps)
        if self.core_context.preempt.should_preempt():
            self._is_preempted = True
            control.should_training_stop = True
            control.should_evaluate = False
            control.should_save = True
        elif self._operations.reached(self._trained(state)) and _can_evaluate(args):
            control.should_evaluate = True
            control.should_save = True
        elif control.should_training_stop:
            control.should_evaluate = control.should_evaluate or _can_evaluate(args)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """With the strategy `best` the Trainer may save nothing now, so that the searcher hears of it here."""
        if self._is_training and str(getattr(args.save_strategy, "value", args.save_strategy)) == "best":
            self._complete_operation(state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """See to it that the last step is evaluated and saved, and no step twice."""
        self._report_validation(state)
        if control.should_training_stop:
            control.should_save = True
            control.should_evaluate = not self._is_preempted and (control.should_evaluate or _can_evaluate(args))
        if self._evaluated_at == state.global_step:
            control.should_evaluate = False
        if self._saved_at == state.global_step:
            control.should_save = False

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report the last evaluation."""
        self._report_validation(state)
        self._is_training = False

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Store the checkpoint that the Trainer has saved."""
        self._report_validation(state)
        name = f"checkpoint-{state.global_step}"
        folder = str(args.output_dir)
        if self.user_data is not None and state.is_world_process_zero:
            with open(os.path.join(folder, name, "my_data.json"), "w", encoding="utf-8") as file:
                json.dump(self.user_data, file)
        mine = self._own_files(folder, (f"{name}/", "runs/"))
        metadata: dict[str, Any] = {"steps_completed": state.global_step}
        info = self.core_context.info
        if info is not None and info.task_type == "TRIAL":
            metadata["trial_id"] = info.trial.trial_id
        self.core_context.checkpoint.upload(folder, metadata, shard=True, selector=mine.__contains__)
        self._saved_at = state.global_step
        self._complete_operation(state, control)

    def _own_files(self, folder: str, below: tuple[str, ...]) -> set[str]:
        """What this worker is to upload: workers of one machine, or with a shared disk, see the same files."""
        workers = self.core_context.distributed
        workers.allgather(None)  # all have written theirs
        found = {path for path in _files(folder) if path.startswith(below)}
        for other in workers.allgather(found)[: workers.rank]:
            found = found - other
        return found

    def _complete_operation(self, state: TrainerState, control: TrainerControl) -> None:
        if self._evaluated_at != state.global_step or not self._operations.reached(self._trained(state)):
            return
        self._report_validation(state)
        if not self._operations.complete(self._validation.get(self._searcher_metric)):
            control.should_training_stop = True

    def _trained(self, state: TrainerState) -> float:
        # An epoch is a fraction of steps, which sums up to a little less than a whole number.
        return state.global_step if self._operations.unit == "batches" else (state.epoch or 0.0) + 1e-6


def get_metric_type(d: Mapping[str, Any]) -> str:
    """Of what kind metrics are, by their names: `eval_` if one begins so, else `test_`, else `train_`."""
    for kind in (EVAL, TEST):
        if any(name.startswith(kind) for name in d):
            return kind
    return TRAIN


def _checked_operations(context: core.Context, config: dict[str, Any], args: TrainingArguments) -> Operations:
    """The searcher's operations, if the configuration agrees with the Trainer about the length of a training."""
    if args.max_steps > -1:
        own, said = ("batches", float(args.max_steps)), f"max_steps={args.max_steps}"
    else:
        own, said = ("epochs", float(args.num_train_epochs)), f"num_train_epochs={args.num_train_epochs}"
    length = configured_length(config)
    if length is not None and "max_length" in config and length != own:
        raise ValueError(
            f"searcher.max_length is {{{length[0]}: {length[1]}}}, but the Trainer is given {said}: "
            "both must be the same"
        )
    by_time = length_by_time(config)
    if by_time is not None and by_time != own:
        raise ValueError(
            f"searcher.max_time is {by_time[1]} {by_time[0]} (time_metric), but the Trainer is given {said}: "
            "both must be the same"
        )
    return Operations(context)


def _load_what_is_missing(model: Any, folder: str) -> None:
    """Load a checkpoint whose weights have other names than the model's, which the Trainer leaves as they were.

    transformers 5 stores models under the names of older releases, and its Trainer loads them by the newer ones.
    """
    stored = _stored_names(folder)
    if not isinstance(model, transformers.PreTrainedModel) or stored is None:
        return
    own: dict[str, Any] = model.state_dict()
    if own.keys() <= stored:
        return
    loaded: Any = type(model).from_pretrained(folder)  # pyright: ignore[reportUnknownMemberType]
    model.load_state_dict(loaded.state_dict())
    _logger.info(f"loaded {len(own.keys() - stored)} weights that {folder} has under other names")


def _stored_names(folder: str) -> set[str] | None:
    """The names of the weights in a checkpoint; None if it has them in another form."""
    index, single = (os.path.join(folder, name) for name in ("model.safetensors.index.json", "model.safetensors"))
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            return set(json.load(file)["weight_map"])
    if not os.path.exists(single):
        return None
    with open(single, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return set(json.loads(file.read(length))) - {"__metadata__"}


def _can_evaluate(args: TrainingArguments) -> bool:
    return bool(args.do_eval) or args.eval_strategy != IntervalStrategy.NO


def _stored_step(folder: str) -> str | None:
    """The folder of the step that the checkpoint's own metadata names: others may be there from an earlier run."""
    try:
        with open(os.path.join(folder, "metadata.json"), encoding="utf-8") as file:
            step = json.load(file).get("steps_completed")
    except (OSError, ValueError):
        return None
    found = os.path.join(folder, f"checkpoint-{step}")
    return found if os.path.isdir(found) else None


def _files(folder: str) -> list[str]:
    return [
        os.path.relpath(os.path.join(where, name), folder).replace(os.sep, "/")
        for where, _, names in os.walk(folder)
        for name in names
    ]
