"""`PyTorchTrialContext`: wrapping models and optimizers, and what a batch does with them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import types
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from determined import errors
from determined.pytorch import _horovod
from determined.pytorch._lr_scheduler import LRScheduler
from determined.pytorch._torch_context import TorchTrialContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from determined.core import Context

logger = logging.getLogger("determined.pytorch")

#: Gradients of more ranks than these are summed in an order that depends on how DDP has packed them.
_RANKS_OF_ANY_ORDER = 2


class PyTorchTrialContext(TorchTrialContext):
    """What a `PyTorchTrial` is made with. Get it from `pytorch.init()`.

    Attributes:
        device: Where this rank trains.
        models: The wrapped models, in their order.
        optimizers: The wrapped optimizers, in their order.
        lr_schedulers: The wrapped schedulers, as `LRScheduler`, in their order.
        distributed: Which rank this is.
        experimental: What may change.
    """

    def __init__(
        self,
        core_context: Context,
        trial_seed: int | None,
        hparams: dict[str, Any] | None,
        slots_per_trial: int,
        num_gpus: int,
        exp_conf: dict[str, Any] | None,
        aggregation_frequency: int = 1,
        steps_completed: int = 0,
        managed_training: bool = False,
        debug_enabled: bool = False,
        enable_tensorboard_logging: bool = True,
    ) -> None:
        super().__init__(
            core_context,
            trial_seed,
            hparams,
            slots_per_trial,
            num_gpus,
            exp_conf,
            steps_completed,
            managed_training,
            debug_enabled,
            enable_tensorboard_logging,
        )
        if not isinstance(aggregation_frequency, int) or aggregation_frequency < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise errors.InvalidExperimentException(
                f"aggregation_frequency is {aggregation_frequency!r}, but must be an integer of 1 or more"
            )
        self._aggregation_frequency = aggregation_frequency
        self.models: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.lr_schedulers: list[LRScheduler] = []
        self.experimental = PyTorchExperimentalContext(self)
        self._averages: dict[int, bool] = {}
        self._scaler: Any = None
        self._is_amp = False
        self._is_apex = False
        self._moves_data = True
        # Of a configuration that names a trial class; `wrap_optimizer` may say otherwise.
        self._fp16_compression = False
        self._average_aggregated_gradients = True

    # -- wrapping -----------------------------------------------------------------------------------------------------

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Put a model onto the device, and in a job of several ranks have their gradients averaged.

        Use what it returns. The order of the calls is the models' order in checkpoints.

        Raises:
            InvalidExperimentException: Training has begun, or `configure_apex_amp` was called before.
        """
        self._before_training("wrap_model")
        if not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise errors.InvalidExperimentException(f"wrap_model({type(model).__name__}): expected a torch.nn.Module")
        if self._is_apex:
            raise errors.InvalidExperimentException("wrap_model must be called before configure_apex_amp")
        model = model.to(self.device)
        if self._is_amp:
            model = self.autocast_forward_pass(model)
        if self._is_ddp():
            model = self._parallel(model)
        self.models.append(model)
        return model

    def _parallel(self, model: nn.Module) -> nn.Module:
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return model  # DDP refuses it, and there is nothing to average
        devices = [self.device] if self.device.type == "cuda" else None
        # After its first batch DDP packs gradients in the order in which they came, a resumed run one batch later than
        # one that was not disturbed. Sums of three and more depend on it in the last bit; with this it does not.
        stays = self.distributed.size > _RANKS_OF_ANY_ORDER
        return _Parallel(model, device_ids=devices, find_unused_parameters=stays)

    def autocast_forward_pass(self, to_wrap: nn.Module) -> nn.Module:
        """Have a model compute in half precision where that is safe; what it returns is in full precision."""
        kind = self.device.type
        inner: Any = type(to_wrap).forward
        if "forward" in to_wrap.__dict__:
            inner = getattr(to_wrap.forward, "__func__", to_wrap.forward)

        # Bound to the model, so that a copy of the model computes with its own weights.
        @functools.wraps(inner)
        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            with torch.autocast(kind):
                result = inner(self, *args, **kwargs)
            return _in_full_precision(result)

        to_wrap.forward = types.MethodType(forward, to_wrap)
        return to_wrap

    def wrap_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> torch.optim.Optimizer:
        """Have an optimizer stepped by `step_optimizer` and saved in checkpoints. Use what it returns.

        Args:
            optimizer: Of parameters of wrapped models.
            backward_passes_per_step: How often `backward` is called for one step.
            fp16_compression: Whether horovod sends gradients in half precision.
            average_aggregated_gradients: Whether aggregated gradients are divided by the number of batches.

        Raises:
            InvalidExperimentException: Training has begun, or `backward_passes_per_step` is below 1.
        """
        self._before_training("wrap_optimizer")
        if backward_passes_per_step < 1:
            raise errors.InvalidExperimentException(
                f"wrap_optimizer: backward_passes_per_step is {backward_passes_per_step}, but must be 1 or more"
            )
        if self._is_horovod():
            compressed = self._fp16_compression if fp16_compression is None else fp16_compression
            optimizer = self._horovod_optimizer(optimizer, backward_passes_per_step, compressed)
        averages = average_aggregated_gradients
        self._averages[id(optimizer)] = self._average_aggregated_gradients if averages is None else averages
        self.optimizers.append(optimizer)
        return optimizer

    def wrap_lr_scheduler(self, lr_scheduler: Any, step_mode: LRScheduler.StepMode, frequency: int = 1) -> Any:
        """Have a scheduler stepped as `step_mode` says, and saved in checkpoints. Returns the scheduler itself.

        Raises:
            InvalidExperimentException: Training has begun, its optimizer is not wrapped, or it is a
                `ReduceLROnPlateau`, which needs `StepMode.MANUAL_STEP`.
        """
        self._before_training("wrap_lr_scheduler")
        if isinstance(lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            if step_mode is not LRScheduler.StepMode.MANUAL_STEP:
                raise errors.InvalidExperimentException(
                    "wrap_lr_scheduler: ReduceLROnPlateau needs a metric to step, so step_mode must be MANUAL_STEP"
                )
        elif step_mode is not LRScheduler.StepMode.MANUAL_STEP and not any(
            lr_scheduler.optimizer is optimizer or lr_scheduler.optimizer is getattr(optimizer, "optimizer", optimizer)
            for optimizer in self.optimizers
        ):
            raise errors.InvalidExperimentException(
                "wrap_lr_scheduler: its optimizer is not wrapped: call wrap_optimizer, and make the scheduler "
                "with what it returns"
            )
        self.lr_schedulers.append(LRScheduler(lr_scheduler, step_mode, frequency))
        return lr_scheduler

    def wrap_scaler(self, scaler: Any) -> Any:
        """Have a `GradScaler` of your own saved in checkpoints; you scale, unscale and update.

        Raises:
            InvalidExperimentException: Models are wrapped already, apex is used, or there is a scaler.
        """
        self._before_training("wrap_scaler")
        if self._is_apex:
            raise errors.InvalidExperimentException("wrap_scaler and configure_apex_amp exclude each other")
        if self._scaler is not None:
            raise errors.InvalidExperimentException("wrap_scaler was called twice (use_amp calls it too)")
        if self.models:
            raise errors.InvalidExperimentException("wrap_scaler and use_amp must be called before wrap_model")
        self._scaler = scaler
        return scaler

    def configure_apex_amp(self, models: Any, optimizers: Any, **options: Any) -> tuple[Any, Any]:
        """Mixed precision by apex, where it is installed. `context.experimental.use_amp()` needs no apex.

        Args:
            models: One wrapped model, or a list.
            optimizers: One wrapped optimizer, or a list.
            options: Those of `apex.amp.initialize`.

        Raises:
            InvalidExperimentException: There is no GPU or no apex, it was called before, a scaler is used, or several
                slots have several losses or aggregate batches.
        """
        self._before_training("configure_apex_amp")
        self._check_apex(options)
        try:
            amp: Any = importlib.import_module("apex.amp")
        except ImportError:
            raise errors.InvalidExperimentException(
                "configure_apex_amp: apex is not installed in this environment; context.experimental.use_amp() does "
                "the same by PyTorch alone"
            ) from None
        is_list = isinstance(models, (list, tuple))
        inner: list[nn.Module] = [bare(model) for model in (cast("list[nn.Module]", models) if is_list else [models])]
        made, stepped = amp.initialize(inner if is_list else inner[0], optimizers, **options)
        self._is_apex = True
        replaced: list[nn.Module] = [*made] if is_list else [made]
        self.models = [self._parallel(model) if self._is_ddp() else model for model in replaced]
        self.optimizers = [*stepped] if isinstance(optimizers, (list, tuple)) else [stepped]
        for optimizer in self.optimizers:
            self._averages.setdefault(id(optimizer), self._average_aggregated_gradients)
        return (self.models if is_list else self.models[0]), stepped

    def _check_apex(self, options: dict[str, Any]) -> None:
        if self._is_apex:
            raise errors.InvalidExperimentException("configure_apex_amp was called twice")
        if self._scaler is not None:
            raise errors.InvalidExperimentException("configure_apex_amp and wrap_scaler or use_amp exclude each other")
        if self.device.type != "cuda":
            raise errors.InvalidExperimentException("configure_apex_amp needs a GPU, and this trial has none")
        if self.distributed.size > 1 and (options.get("num_losses", 1) != 1 or self._aggregation_frequency > 1):
            raise errors.InvalidExperimentException(
                "configure_apex_amp on several slots needs num_losses=1 and aggregation_frequency 1"
            )

    # -- a batch ------------------------------------------------------------------------------------------------------

    def backward(
        self,
        loss: torch.Tensor,
        gradient: torch.Tensor | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Compute gradients of a loss, as `loss.backward()` does; with `use_amp()` of the scaled loss.

        Raises:
            InvalidExperimentException: Outside of `train_batch`.
        """
        if self._batch_idx is None:
            raise errors.InvalidExperimentException("context.backward may be called in train_batch only")
        if self._is_apex:
            return self._apex_backward(loss, gradient, retain_graph, create_graph)
        if self._is_amp and self._scaler is not None:
            loss = self._scaler.scale(loss)
        loss.backward(gradient=gradient, retain_graph=retain_graph, create_graph=create_graph)  # pyright: ignore
        return None

    def _apex_backward(
        self, loss: torch.Tensor, gradient: torch.Tensor | None, retain_graph: bool, create_graph: bool
    ) -> None:
        amp: Any = importlib.import_module("apex.amp")
        with amp.scale_loss(loss, self.optimizers) as scaled:
            scaled.backward(gradient=gradient, retain_graph=retain_graph, create_graph=create_graph)

    def step_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: Callable[[Iterator[Any]], Any] | None = None,
        auto_zero_grads: bool = True,
        scaler: Any = None,
    ) -> None:
        """Step a wrapped optimizer, if this batch completes as many as are aggregated; otherwise do nothing.

        Args:
            optimizer: What `wrap_optimizer` returned.
            clip_grads: Called with an iterator of the parameters before the step, for example
                `lambda params: torch.nn.utils.clip_grad_norm_(params, 1.0)`.
            auto_zero_grads: Whether gradients are zeroed after the step.
            scaler: Your own scaler, if you scaled the loss by it.

        Raises:
            InvalidExperimentException: The optimizer is not wrapped, this is outside of `train_batch`, or
                `auto_zero_grads` is False while batches are aggregated.
        """
        if id(optimizer) not in self._averages:
            raise errors.InvalidExperimentException(
                "step_optimizer: this optimizer is not wrapped; make it with context.wrap_optimizer in __init__"
            )
        every = self._aggregation_frequency
        if every > 1 and not auto_zero_grads:
            raise errors.InvalidExperimentException(
                f"step_optimizer: auto_zero_grads must be True, because aggregation_frequency is {every}"
            )
        if not self._steps_at(self._current()):
            return
        if self._is_horovod():
            cast("Any", optimizer).synchronize()
        if every > 1 and self._averages[id(optimizer)]:
            _divide_gradients(optimizer, every)
        scaler = scaler or (self._scaler if self._is_amp else None)
        if clip_grads is not None:
            if self._is_amp and scaler is self._scaler:
                scaler.unscale_(optimizer)
            clip_grads(self._parameters(optimizer))
        with cast("Any", optimizer).skip_synchronize() if self._is_horovod() else contextlib.nullcontext():
            if scaler is not None:
                scaler.step(optimizer)
            else:
                optimizer.step()
        if auto_zero_grads:
            optimizer.zero_grad()

    def _parameters(self, optimizer: torch.optim.Optimizer) -> Iterator[Any]:
        if self._is_apex:
            amp: Any = importlib.import_module("apex.amp")
            return iter(amp.master_params(optimizer))
        return (parameter for group in optimizer.param_groups for parameter in group["params"])

    def _steps_at(self, batch_idx: int) -> bool:
        """Whether optimizers step after a batch."""
        return (batch_idx + 1) % self._aggregation_frequency == 0

    def _begin_batch(self, batch_idx: int) -> None:
        """Ranks exchange gradients only of batches after which they step."""
        self._batch_idx = batch_idx
        if self._aggregation_frequency > 1:
            steps = self._steps_at(batch_idx)
            for model in self.models:
                if isinstance(model, DistributedDataParallel):
                    model.require_backward_grad_sync = steps

    def _end_batch(self, batch_idx: int) -> None:
        """Update the scaler and step the schedulers; call it after `train_batch`."""
        if not self._steps_at(batch_idx):
            return
        if self._is_amp and self._scaler is not None:
            self._scaler.update()
        for scheduler in self.lr_schedulers:
            scheduler.after_batch(batch_idx, self._epoch_len, self._aggregation_frequency)

    # -- where this runs ----------------------------------------------------------------------------------------------

    def _is_horovod(self) -> bool:
        return self.distributed.size > 1 and bool(os.environ.get("USE_HOROVOD"))

    def _is_ddp(self) -> bool:
        return self.distributed.size > 1 and not self._is_horovod()

    def _horovod_optimizer(self, optimizer: torch.optim.Optimizer, passes: int, compressed: bool) -> Any:
        horovod = _horovod.module()
        names = [
            (f"{i}.{name}", parameter)
            for i, model in enumerate(self.models)
            for name, parameter in model.named_parameters()
        ]
        return horovod.DistributedOptimizer(
            optimizer,
            named_parameters=names,
            backward_passes_per_step=passes * self._aggregation_frequency,
            compression=horovod.Compression.fp16 if compressed else horovod.Compression.none,
        )


class PyTorchExperimentalContext:
    """What may change. Get it as `context.experimental`."""

    def __init__(self, parent: Any) -> None:
        self._parent = parent

    def use_amp(self) -> None:
        """Train in mixed precision, loss scaling included. Call it before `wrap_model`.

        Raises: InvalidExperimentException, as `wrap_scaler` does.
        """
        self._parent.wrap_scaler(torch.amp.GradScaler(self._parent.device.type))
        self._parent._is_amp = True

    def disable_dataset_reproducibility_checks(self) -> None:
        """Allow any data loader. Shuffling, sharding among ranks and skipping are yours then."""
        self._parent._any_loader = True

    def disable_auto_to_device(self) -> None:
        """Leave batches where the loader has made them."""
        self._parent._moves_data = False


class _Parallel(DistributedDataParallel):
    """DDP that has the attributes and methods of its model."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def bare(model: nn.Module) -> nn.Module:
    """The user's own model, without what averages its gradients."""
    return cast("Any", model).module if isinstance(model, DistributedDataParallel) else model


def _divide_gradients(optimizer: torch.optim.Optimizer, by: int) -> None:
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    dense = [gradient for gradient in gradients if not gradient.is_sparse]
    if dense:
        torch._foreach_div_(dense, by)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    for gradient in gradients:
        if gradient.is_sparse:
            gradient.div_(by)


def _in_full_precision(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
    kind = cast("Any", type(value))
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return kind({name: _in_full_precision(item) for name, item in items})
    if isinstance(value, (list, tuple)):
        made = [_in_full_precision(item) for item in cast("list[Any]", value)]
        return kind(*made) if hasattr(kind, "_fields") else kind(made)
    if value is not None:
        _tell_once(kind)
    return value


@functools.lru_cache(maxsize=16)
def _tell_once(kind: type) -> None:
    logger.warning(f"use_amp: a model returns a {kind.__name__}, in which half precision is left as it is")
