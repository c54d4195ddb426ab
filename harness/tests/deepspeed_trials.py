"""Trials with DeepSpeed to train in tests, in processes of their own: DeepSpeed keeps what it once made."""

from __future__ import annotations

import hashlib
import importlib
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import data

sys.path.insert(0, str(Path(__file__).parent))
from pytorch_trials import Numbers, serve  # pyright: ignore

from determined import core, pytorch
from determined.pytorch import deepspeed as det_deepspeed

deepspeed: Any = importlib.import_module("deepspeed")


def config(options: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's configuration of a test: micro batches of 2, and two of them in a batch."""
    return det_deepspeed.overwrite_deepspeed_config(
        {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": options.get("micro", 2),
            "zero_optimization": {"stage": options.get("stage", 0)},
            "gradient_clipping": 0.5,
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 6, "warmup_max_lr": 0.02}},
        },
        options.get("ds", {}),
    )


def layers() -> list[nn.Module]:
    """A network with dropout."""
    return [nn.Linear(1, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)]


def wrapped(context: Any, model: nn.Module, options: dict[str, Any]) -> Any:
    """The engine of a model."""
    adam = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), optimizer=adam, config=config(options)
    )
    return context.wrap_model_engine(engine)


class Simple(det_deepspeed.DeepSpeedTrial):
    """0..11 in micro batches of 2; what it was called with is in `seen`, what happened in `told`."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.options: dict[str, Any] = context.get_hparams()
        self.seen: list[tuple[int, int, list[int]]] = []
        self.told: list[Any] = []
        self.made()

    def made(self) -> None:
        self.engine = wrapped(self.context, nn.Sequential(*layers()), self.options)

    def loss(self, batch: Any) -> Any:
        dtype = torch.bfloat16 if "bf16" in self.options.get("ds", {}) else torch.float32
        features, labels = (each.to(dtype) for each in self.context.to_device(batch))
        return nn.functional.mse_loss(self.engine(features), labels)

    def train_batch(self, dataloader_iter: Iterator[Any] | None, epoch_idx: int, batch_idx: int) -> Any:
        assert dataloader_iter is not None
        self.maybe_killed(batch_idx)
        batch = next(dataloader_iter)
        self.seen.append((epoch_idx, batch_idx, [round(12 * float(value)) for value in batch[0]]))
        loss = self.loss(batch)
        self.engine.backward(loss)
        self.engine.step()
        return {"loss": loss, "rank": float(self.context.distributed.rank)}

    def maybe_killed(self, batch_idx: int) -> None:
        if batch_idx == self.options.get("kill_at") and self.context.distributed.rank == self.options.get(
            "kill_rank", 0
        ):
            os.kill(os.getpid(), signal.SIGKILL)

    def evaluate_batch(self, dataloader_iter: Iterator[Any] | None, batch_idx: int) -> Any:
        assert dataloader_iter is not None
        batch = next(dataloader_iter)
        self.told.append(["validated", [round(8 * float(value)) for value in batch[0]]])
        return {"accuracy": self.loss(batch), "sum": batch[0].sum()}

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(Numbers(), batch_size=self.context.get_train_micro_batch_size_per_gpu())

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(Numbers(8), batch_size=2)

    def weights(self) -> str:
        """SHA-256 of the parameters: of the whole model, or of this rank's stage."""
        found = hashlib.sha256()
        for engine in self.context.models:
            parameters = list(engine.module.parameters())
            partitioned = engine.zero_optimization_stage() == 3
            with deepspeed.zero.GatheredParameters(parameters, enabled=partitioned):
                for parameter in parameters:
                    found.update(parameter.detach().float().numpy().tobytes())
        return found.hexdigest()


class Exact(Simple):
    """With augmentation, in an order that is shuffled."""

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(
            Numbers(22, 0.1), batch_size=2, shuffle=True, num_workers=self.options.get("workers", 0)
        )

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(Numbers(8, 0.1), batch_size=2)


class Piped(Exact):
    """As a pipeline of two stages."""

    def made(self) -> None:
        from deepspeed.pipe import PipelineModule  # pyright: ignore

        model = PipelineModule(layers=layers(), num_stages=2, loss_fn=nn.functional.mse_loss)
        self.engine = wrapped(self.context, model, self.options)

    def train_batch(self, dataloader_iter: Iterator[Any] | None, epoch_idx: int, batch_idx: int) -> Any:
        self.maybe_killed(batch_idx)
        self.seen.append((epoch_idx, batch_idx, []))
        return self.engine.train_batch(dataloader_iter)

    def evaluate_batch(self, dataloader_iter: Iterator[Any] | None, batch_idx: int) -> Any:
        return {"accuracy": self.engine.eval_batch(dataloader_iter)}


class Whole(Simple):
    """Evaluates its data in one go."""

    evaluate_batch = det_deepspeed.DeepSpeedTrial.evaluate_batch  # type: ignore[assignment]

    def evaluate_full_dataset(self, data_loader: Any) -> Any:
        self.told.append(["validated", [[round(8 * float(value)) for value in batch[0]] for batch in data_loader]])
        return {"accuracy": 0.5}


class Manual(Simple):
    """Trains all micro batches of a batch in one call."""

    def made(self) -> None:
        super().made()
        self.context.disable_auto_grad_accumulation()

    def train_batch(self, *args: Any, **kwargs: Any) -> Any:
        return [super(Manual, self).train_batch(*args, **kwargs) for _ in range(2)][-1]


class Alike(Simple):
    """Two ranks have one share of the data, as where they share a model; the second one counts for nothing."""

    def made(self) -> None:
        super().made()
        self.context.set_mpu(
            det_deepspeed.ModelParallelUnit(
                data_parallel_rank=0,
                data_parallel_world_size=1,
                should_report_metrics=self.context.distributed.rank == self.options.get("reports", 1),
                should_build_data_loader=True,
            )
        )


class TwoEngines(Simple):
    """One trained after the other."""

    def made(self) -> None:
        super().made()
        self.other = wrapped(self.context, nn.Sequential(*layers()), self.options)

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        batch = next(dataloader_iter)
        losses: dict[str, Any] = {}
        for name, engine in (("first", self.engine), ("second", self.other)):
            losses[name] = nn.functional.mse_loss(engine(batch[0]), batch[1])
            engine.backward(losses[name])
            engine.step()
        return losses


class Told(pytorch.PyTorchCallback):
    """Its calls; and a state of its own on each rank."""

    def __init__(self, trial: Simple) -> None:
        self.trial = trial

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("on_"):
            return lambda *args, **kwargs: (self.trial.told.append(name), value(*args, **kwargs))[1]  # pyright: ignore
        return value

    def state_dict(self) -> dict[str, Any]:
        return {"rank": self.trial.context.distributed.rank}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.trial.told.append(["loaded", state_dict["rank"]])

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        (Path(checkpoint_dir) / f"mine{self.trial.context.distributed.rank}").write_text("added")


class Calls(Simple):
    """With a callback."""

    def build_callbacks(self) -> Any:
        return {"told": Told(self)}


class InvalidHp(Simple):
    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        if batch_idx == 2:
            from determined import InvalidHP

            raise InvalidHP("too large")
        return super().train_batch(dataloader_iter, epoch_idx, batch_idx)


# -- mistakes ----------------------------------------------------------------------------------------------------------


class Nothing(Simple):
    def made(self) -> None:
        pass


class NoEngine(Simple):
    def made(self) -> None:
        self.context.wrap_model_engine((nn.Linear(1, 1), None))


class Early(Simple):
    def made(self) -> None:
        self.context.get_train_micro_batch_size_per_gpu()


class MpuEarly(Simple):
    def made(self) -> None:
        self.context.set_mpu(det_deepspeed.ModelParallelUnit(0, 1, True, True))


class MpuTwice(Simple):
    def made(self) -> None:
        super().made()
        for _ in range(2):
            self.context.set_mpu(det_deepspeed.ModelParallelUnit(0, 1, True, True))


class MpuTooLarge(Simple):
    def made(self) -> None:
        super().made()
        self.context.set_mpu(det_deepspeed.ModelParallelUnit(1, 2, True, True))


class Silent(Simple):
    def made(self) -> None:
        super().made()
        self.context.set_mpu(det_deepspeed.ModelParallelUnit(0, 1, False, True))


class NoLoader(Simple):
    def made(self) -> None:
        super().made()
        self.context.set_mpu(det_deepspeed.ModelParallelUnit(0, 1, True, False))


class Returns(Simple):
    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        super().train_batch(dataloader_iter, epoch_idx, batch_idx)
        return 3


class Takes(Simple):
    def train_batch(self, dataloader_iter: Any, epoch_idx: int) -> Any:  # type: ignore[override]
        return None


class NoStep(Simple):
    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = self.loss(next(dataloader_iter))
        if not self.seen:  # one of two
            self.seen.append((0, 0, []))
            self.engine.backward(loss)
            self.engine.step()
        return loss


class Plain(Simple):
    def build_training_data_loader(self) -> Any:
        return data.DataLoader(Numbers(), batch_size=2)


class Small(Simple):
    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(Numbers(2), batch_size=2)


class Neither(Simple):
    evaluate_batch = det_deepspeed.DeepSpeedTrial.evaluate_batch  # type: ignore[assignment]


class Differs(Simple):
    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        found = super().train_batch(dataloader_iter, epoch_idx, batch_idx)
        return {**found, f"of {len(self.seen)}": 1.0}


#: What DeepSpeed imports in its first engine, for seconds.
_LATE = "deepspeed.runtime.zero.muon.muon_optimizer"


def _pretend(kind: str) -> None:
    """Have DeepSpeed compute on another accelerator than that of this machine."""
    get: Any = importlib.import_module("deepspeed.accelerator").get_accelerator
    get().device_name = lambda: kind


def train(job: dict[str, Any], fit: dict[str, Any]) -> Any:
    """One rank of a job: train a trial of this module; what a test compares."""
    random.seed(0)
    if "accelerator" in job:
        _pretend(job["accelerator"])
    distributed = core.DistributedContext.from_torch_distributed() if job.get("is_local") and job["size"] > 1 else None
    with det_deepspeed.init(hparams=job["hparams"], distributed=distributed) as context:
        trial = globals()[job["cls"]](context)
        det_deepspeed.Trainer(trial, context).fit(latest_checkpoint=job.get("latest"), **fit)
        return {"weights": trial.weights(), "seen": trial.seen, "told": trial.told}


if __name__ == "__main__":
    serve(train, "deepspeed.pipe", "deepspeed.runtime.zero.stage3", _LATE, "determined.pytorch.deepspeed._trainer")
