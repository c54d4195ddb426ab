"""`torch_batch_process`: a data set in batches over all slots of a trial, which resumes where it was."""

from __future__ import annotations

import abc
import contextlib
import json
import logging
import math
import os
import pathlib
import pickle
import tempfile
from typing import Any, cast

import torch
from torch.utils import data as torch_data

from determined import core, errors
from determined._info import get_cluster_info
from determined.pytorch import _data, _horovod
from determined.pytorch._reducer import ReducerGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from determined._info import ClusterInfo
    from determined.common.experimental.checkpoint import Checkpoint
    from determined.common.experimental.model import ModelVersion
    from determined.pytorch._reducer import Contribution, MetricReducer

logger = logging.getLogger("determined.pytorch")

_PROGRESS_FILE = "batch_completed.json"
_REDUCERS_FILE = "reducers.pkl"
_METADATA_FILE = "metadata.json"


class TorchBatchProcessorContext:
    """What a `TorchBatchProcessor` is constructed with.

    Attributes:
        device: The GPU of this slot, or the CPU.
        distributed: Which rank this is.
    """

    def __init__(self, core_context: core.Context, storage_path: str) -> None:
        self._core = core_context
        self._storage_path = storage_path
        self.distributed = core_context.distributed
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            self.device = torch.device("cuda", self.distributed.local_rank)
            torch.cuda.set_device(self.device)
        self._reducers = ReducerGroup(self.distributed.allgather)
        self._told_types: set[type] = set()

    def get_hparams(self) -> dict[str, Any]:
        """The hyperparameters of the trial."""
        info = self._core.info
        return dict(info.trial.hparams) if info is not None else {}

    def to_device(self, data: Any, warned_types: set[type] | None = None) -> Any:
        """Move what is in a batch to this slot's device; numpy arrays become tensors."""
        return _data.to_device(data, self.device, self._told_types if warned_types is None else warned_types)

    def prepare_model_for_inference(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model in evaluation mode on this slot's device."""
        model.eval()
        return model.to(self.device)

    def wrap_reducer(
        self,
        reducer: Callable[[list[Any]], Any] | MetricReducer,
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> Any:
        """Report a metric of all batches as a validation, as `PyTorchTrialContext.wrap_reducer` does.

        Its state is stored with the progress. A run that resumes passes `cross_slot_reduce` what each slot contributed
        in each run.

        Raises:
            ArgumentsError: It is neither a function nor a MetricReducer, or was wrapped before.
        """
        return self._reducers.wrap(reducer, name, for_training, for_validation)

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report metrics of any group; as `core.TrainContext.report_metrics`."""
        self._core.train.report_metrics(group, steps_completed, metrics)

    def report_task_using_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Have the metrics of this trial found at a checkpoint; the chief reports it, other ranks may call it too."""
        if self.distributed.rank == 0:
            self._core.experimental.report_task_using_checkpoint(checkpoint)

    def report_task_using_model_version(self, model_version: ModelVersion) -> None:
        """Have the metrics of this trial found at a version of a model; the chief reports it."""
        if self.distributed.rank == 0:
            self._core.experimental.report_task_using_model_version(model_version)

    def get_distributed_rank(self) -> int:
        """The rank of this worker."""
        return self.distributed.rank

    def get_distributed_size(self) -> int:
        """The number of workers."""
        return self.distributed.size

    def get_tensorboard_path(self) -> pathlib.Path:
        """A folder whose files are uploaded for TensorBoard each time the progress is stored."""
        return self._core.train.get_tensorboard_path()

    @contextlib.contextmanager
    def upload_path(self) -> Generator[pathlib.Path]:
        """A folder for results, which are copied to the checkpoint storage when the block ends.

        They come to `<default_output_uuid>/rank_<rank>` there; the uuid is in the metadata of the trial's checkpoints.
        A file of the same name replaces an earlier one.
        """
        with tempfile.TemporaryDirectory(prefix="determined-output-") as folder:
            yield pathlib.Path(folder)
            storage = self._core.checkpoint._storage  # pyright: ignore[reportPrivateUsage]
            for file in sorted(pathlib.Path(folder).rglob("*")):
                if file.is_file():
                    below = file.relative_to(folder).as_posix()
                    # It takes any file.
                    storage.put_tensorboard(str(file), f"{self._storage_path}/rank_{self.distributed.rank}/{below}")


class TorchBatchProcessor(abc.ABC):
    """What to do with each batch; one object is made on each slot."""

    def __init__(self, context: TorchBatchProcessorContext) -> None:  # noqa: B027
        """Load the model, wrap reducers."""

    @abc.abstractmethod
    def process_batch(self, batch: Any, batch_idx: int) -> None:
        """Process a batch of this slot; `batch_idx` counts those of this slot, over all runs.

        After a failure the batches since progress was stored last are processed again.
        """

    def on_checkpoint_start(self) -> None:  # noqa: B027
        """Called on each slot before the progress is stored: write what you still hold."""

    def on_finish(self) -> None:  # noqa: B027
        """Called on each slot after all batches."""


def torch_batch_process(
    batch_processor_cls: type[TorchBatchProcessor],
    dataset: torch_data.Dataset[Any],
    batch_size: int | None = None,
    max_batches: int | None = None,
    checkpoint_interval: int = 5,
    dataloader_kwargs: dict[str, Any] | None = None,
    distributed_context: core.DistributedContext | None = None,
) -> None:
    """Process a data set in batches over all slots of a trial, for example for inference::

        class Classify(TorchBatchProcessor):
            def __init__(self, context):
                self.context = context
                self.model = context.prepare_model_for_inference(load())

            def process_batch(self, batch, batch_idx):
                with torch.no_grad(), self.context.upload_path() as path:
                    torch.save(self.model(self.context.to_device(batch)), path / f"{batch_idx}.pt")

        torch_batch_process(Classify, dataset, batch_size=64)

    Args:
        batch_processor_cls: A subclass of TorchBatchProcessor.
        dataset: It has a length, and is read by index.
        batch_size: Samples in a batch; 1 by default.
        max_batches: At most this many batches on each slot.
        checkpoint_interval: The progress is stored after each of this many batches on each slot.
        dataloader_kwargs: Further arguments of `torch.utils.data.DataLoader`.
        distributed_context: By default what the launcher of the entrypoint says.

    Raises:
        NoTrialException: This process is not of a trial.
        ValueError: An argument is not as it must be.
    """
    options = dict(dataloader_kwargs or {})
    size = _checked(dataset, batch_size, checkpoint_interval, options)
    info = get_cluster_info()
    if info is None or info.task_type != "TRIAL":
        raise errors.NoTrialException(
            "torch_batch_process runs in a trial of a cluster only; submit it with `det experiment create`"
        )
    distributed = distributed_context or _distributed(info)
    with core.init(distributed=distributed, tensorboard_mode=core.TensorboardMode.MANUAL) as core_context:
        _Run(core_context, info.latest_checkpoint, size, options.pop("drop_last", False)).process(
            batch_processor_cls, dataset, max_batches, checkpoint_interval, options
        )


def _checked(dataset: Any, batch_size: int | None, checkpoint_interval: int, options: dict[str, Any]) -> int:
    """The batch size; it is taken out of the options, and so is what says nothing."""
    if checkpoint_interval <= 0:
        raise ValueError(f"torch_batch_process: checkpoint_interval is {checkpoint_interval}, but must be at least 1")
    if not hasattr(dataset, "__len__"):
        raise ValueError(f"torch_batch_process: the dataset {type(dataset).__name__} has no __len__; define it")
    for name in ("sampler", "batch_sampler"):
        if options.get(name) is not None:
            raise ValueError(f"torch_batch_process: dataloader_kwargs has {name}, but the batches of slots are fixed")
        options.pop(name, None)
    if options.pop("shuffle", False):
        raise ValueError("torch_batch_process: dataloader_kwargs has shuffle=True, but the batches of slots are fixed")
    if "batch_size" in options:
        if batch_size is not None:
            raise ValueError("torch_batch_process: batch_size is in dataloader_kwargs too; give it once")
        batch_size = options.pop("batch_size")
    if batch_size is None:
        return 1
    if batch_size < 1:
        raise ValueError(f"torch_batch_process: batch_size is {batch_size}, but must be at least 1")
    return batch_size


def _distributed(info: ClusterInfo) -> core.DistributedContext | None:
    if sum(info.container_slot_counts) <= 1 and len(info.container_addrs) <= 1:
        return None
    if os.environ.get("USE_DEEPSPEED"):
        return core.DistributedContext.from_deepspeed()
    if os.environ.get("USE_HOROVOD"):
        return _horovod.ranks()
    return core.DistributedContext.from_torch_distributed()


class _Run:
    """One run of a trial over the data set, from where the one before was."""

    def __init__(self, core_context: core.Context, latest: str | None, batch_size: int, drop_last: bool) -> None:
        self._core = core_context
        self._rank = core_context.distributed.rank
        self._size = core_context.distributed.size
        self._batch_size = batch_size
        self._drop_last = drop_last
        #: Batches of each slot that are done, and that are stored as done.
        self._done = 0
        self._stored = 0
        self._total = 0
        self._earlier: list[list[list[Contribution]]] = []
        output = None
        if latest is not None:
            with core_context.checkpoint.restore_path(latest) as folder:
                output = self._restore(folder)
        self._output: str = core_context.distributed.broadcast(output or _new_id())
        self._context = TorchBatchProcessorContext(core_context, self._output)

    def _restore(self, folder: pathlib.Path) -> str | None:
        try:
            progress: dict[str, Any] = json.loads((folder / _PROGRESS_FILE).read_text())
            metadata: dict[str, Any] = json.loads((folder / _METADATA_FILE).read_text())
            done = int(progress["batch_completed"])
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise errors.InvalidCheckpointException(
                f"the checkpoint that the trial resumes from has no {_PROGRESS_FILE} of torch_batch_process: {e}"
            ) from e
        # Rounds of all slots; with another number of them, what does not fill a round is processed again.
        samples = done * progress.get("workers", self._size) * progress.get("batch_size", self._batch_size)
        self._done = self._stored = samples // (self._size * self._batch_size)
        if (folder / _REDUCERS_FILE).is_file():
            self._earlier = pickle.loads((folder / _REDUCERS_FILE).read_bytes())
        return metadata.get("default_output_uuid")

    def process(
        self,
        processor_cls: type[TorchBatchProcessor],
        dataset: Any,
        max_batches: int | None,
        interval: int,
        options: dict[str, Any],
    ) -> None:
        batches = len(dataset) / self._batch_size
        self._total = math.ceil((math.floor(batches) if self._drop_last else math.ceil(batches)) / self._size)
        if max_batches is not None:
            if 0 < max_batches <= self._total:
                self._total = max_batches
            elif self._rank == 0:
                logger.warning(
                    f"torch_batch_process: max_batches is {max_batches}, but must be from 1 to {self._total}, the "
                    "batches of each slot: all are processed"
                )
        processor = processor_cls(self._context)
        self._check_earlier()
        own = iter(self._loader(dataset, options) if self._done < self._total else ())
        while self._done < self._total:
            # A slot without a batch in the last round joins the others nevertheless.
            for batch in own:
                processor.process_batch(batch=batch, batch_idx=self._done)
                break
            self._done += 1
            if self._done % interval == 0:
                self._store(processor)
                if self._core.preempt.should_preempt():
                    self._report()
                    return
        if self._stored < self._done:
            self._store(processor)
        self._report()
        processor.on_finish()
        self._core.distributed.allgather(None)

    def _loader(self, dataset: Any, options: dict[str, Any]) -> torch_data.DataLoader[Any]:
        order = torch_data.SequentialSampler(dataset)
        batches = torch_data.BatchSampler(order, self._batch_size, self._drop_last)
        own = _data.adapt_batch_sampler(batches, skip=self._done, num_replicas=self._size, rank=self._rank)
        return torch_data.DataLoader(dataset, **options, batch_sampler=cast("Any", own))

    def _store(self, processor: TorchBatchProcessor) -> None:
        processor.on_checkpoint_start()
        # Event files of several ranks would show each metric several times.
        self._core.train.upload_tensorboard_files(lambda path: self._rank == 0 or "tfevents" not in path.name)
        gathered = self._core.distributed.gather((self._done, self._contributions()))
        self._stored = self._done
        if gathered is None:
            return
        done = min(count for count, _ in gathered)
        now = [contributions for _, contributions in gathered]
        metadata = {"steps_completed": done, "default_output_uuid": self._output}
        with self._core.checkpoint.store_path(metadata) as (folder, _):
            progress = {"batch_completed": done, "workers": self._size, "batch_size": self._batch_size}
            (folder / _PROGRESS_FILE).write_text(json.dumps(progress))
            if any(now):
                (folder / _REDUCERS_FILE).write_bytes(pickle.dumps([*self._earlier, now]))
        if self._total:
            self._core.train.report_progress(done / self._total)

    def _contributions(self) -> list[Contribution]:
        return self._context._reducers.contributions()  # pyright: ignore[reportPrivateUsage]

    def _check_earlier(self) -> None:
        count = len(self._context._reducers)  # pyright: ignore[reportPrivateUsage]
        if any(len(slot) != count for run in self._earlier for slot in run):
            self._earlier = []
            if self._rank == 0:
                logger.warning(
                    f"torch_batch_process: {count} reducers were wrapped, but the run before had another number of "
                    "them: its values are left out"
                )

    def _report(self) -> None:
        gathered = self._core.distributed.gather(self._contributions())
        if gathered is None or not any(gathered):
            return
        reducers = self._context._reducers  # pyright: ignore[reportPrivateUsage]
        self._core.train.report_validation_metrics(self._done, reducers.combine(self._earlier, gathered))


def _new_id() -> str:
    from determined.common.storage._storage import new_storage_id

    return new_storage_id()
