"""Copies of tensors in the host's memory, so that training may go on while a checkpoint is written.

What a GPU has comes through a few small buffers of pinned memory: it writes into one while threads empty the others.
A plain `.to("cpu")` is slower: 1.2 GB/s beside an H100, where four threads had 9. To pin a copy as a whole would be
faster still, and would take as much of the host's memory from every other process.
"""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, cast

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

#: Bytes of a buffer, and how many there are for each device. A smaller tensor gains nothing.
BUFFER = 8 << 20
_BUFFERS = 8
#: One alone, which also gets new pages from the kernel, is slower than the GPU; torchrun leaves PyTorch one of its own.
_THREADS = 4


def on_host(value: Any) -> Any:
    """A copy whose tensors are this call's own, in the host's memory.

    Tensors that share their memory, such as tied weights, share it in the copy. Other values are the same objects.
    """
    with ThreadPoolExecutor(_THREADS, "determined-copy") as threads:  # which begins one when there is work for it
        copies = _Copies(threads)
        copied = copies.of(value)
        copies.finish()
    return copied


class _Copies:
    """The copies of one call; whole when `finish` has returned."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._copied: dict[Any, torch.Tensor] = {}
        self._stages: dict[torch.device, Stage] = {}

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._of_tensor(value.detach())
        if isinstance(value, dict):
            made = cast("dict[Any, Any]", value.__class__() if type(value) is not dict else {})  # pyright: ignore
            for name, item in value.items():  # pyright: ignore[reportUnknownVariableType]
                made[name] = self.of(item)
            if hasattr(value, "_metadata"):  # pyright: ignore[reportUnknownArgumentType]
                made._metadata = value._metadata  # type: ignore[attr-defined]
            return made
        if type(value) in (list, tuple):  # pyright: ignore[reportUnknownArgumentType]
            return type(value)(self.of(item) for item in value)  # pyright: ignore
        return value

    def finish(self) -> None:
        for stage in self._stages.values():
            stage.empty()

    def _of_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided or not tensor.numel():
            return tensor.to("cpu", copy=True)
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if place not in self._copied:
            self._copied[place] = self._copy(tensor)
        return self._copied[place]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        is_large = tensor.is_cuda and tensor.numel() * tensor.element_size() >= BUFFER
        if not is_large or not is_dense(tensor):
            return tensor.to("cpu", copy=True)
        if tensor.device not in self._stages:
            self._stages[tensor.device] = Stage.of_gpu(tensor.device, self._threads)
        return self._stages[tensor.device].copy(tensor)


class Stage:
    """Copies through buffers; what `copy` has returned is whole after `empty`.

    Args:
        buffers: On the host, one-dimensional, of bytes and of one size.
        record: Called when a copy into a buffer is on its way; what it returns waits for that copy.
        threads: They empty buffers.
    """

    def __init__(
        self, buffers: list[torch.Tensor], record: Callable[[], Callable[[], None]], threads: Executor
    ) -> None:
        self._buffers = buffers
        self._record = record
        self._threads = threads
        self._emptied: list[Future[None] | None] = [None] * len(buffers)
        self._next = 0

    @classmethod
    def of_gpu(cls, device: torch.device, threads: Executor) -> Stage:
        """With pinned memory, on the device's current stream: what was asked of the GPU before comes first."""

        def record() -> Callable[[], None]:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
            return event.synchronize

        # PyTorch keeps pinned memory that nobody uses any more: the next checkpoint has the same
        buffers = [torch.empty(BUFFER, dtype=torch.uint8, pin_memory=True) for _ in range(_BUFFERS)]
        return cls(buffers, record, threads)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the host, of the same shape, strides and type.

        Args:
            tensor: Whose memory has no gaps: see `is_dense`.
        """
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        source, target = _bytes_of(tensor), _bytes_of(made)
        size = self._buffers[0].numel()
        for start in range(0, source.numel(), size):
            self._through(source[start : start + size], target[start : start + size])
        return made

    def empty(self) -> None:
        """Wait for all that is in the buffers."""
        for place in range(len(self._buffers)):
            self._until_empty(place)

    def _through(self, source: torch.Tensor, target: torch.Tensor) -> None:
        place = self._next
        self._next = (place + 1) % len(self._buffers)
        self._until_empty(place)
        part = self._buffers[place][: source.numel()]
        part.copy_(source, non_blocking=True)
        arrived = self._record()

        def take() -> None:
            arrived()
            target.copy_(part)

        self._emptied[place] = self._threads.submit(take)

    def _until_empty(self, place: int) -> None:
        emptied, self._emptied[place] = self._emptied[place], None
        if emptied is not None:
            emptied.result()


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a piece of memory, in whatever order: each has a place of its own, with no gaps."""
    # others than plain ones may keep their elements elsewhere, or as something else
    if type(tensor) is not torch.Tensor or tensor.is_quantized or tensor.is_complex() or tensor.is_neg():
        return False
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride()), key=lambda each: each[1]):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its memory, from its first byte to its last."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
