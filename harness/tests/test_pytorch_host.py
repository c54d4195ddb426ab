"""Copies in the host's memory: of the same content, layout and ties, also where they come through buffers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from determined.pytorch import _host

SIZE = 64


class Device:
    """As a GPU that copies late: what was asked of it is in its buffer when somebody has waited for it."""

    def __init__(self, buffers: int) -> None:
        self.buffers = [torch.zeros(SIZE, dtype=torch.uint8) for _ in range(buffers)]
        self.is_copied = threading.Event()
        self.sent = self.waited = 0

    def record(self) -> Callable[[], None]:
        self.sent += 1
        return self._wait

    def _wait(self) -> None:
        assert self.is_copied.wait(30)
        self.waited += 1


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def layouts() -> list[torch.Tensor]:
    numbers = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32)
    image = numbers.reshape(2, 3, 4, 5)
    return [
        numbers,
        image,
        image.to(memory_format=torch.channels_last),
        image.permute(3, 1, 0, 2),
        numbers[7:90],
        numbers.to(torch.bfloat16),
        numbers > 50,
        numbers.to(torch.float64).reshape(1, 120, 1),
        torch.arange(SIZE, dtype=torch.uint8),
        torch.arange(SIZE + 1, dtype=torch.uint8),
        torch.tensor(3.0),
    ]


@pytest.mark.parametrize("buffers", [1, 2, 8])
def test_copies_through_buffers_are_the_same_in_all_layouts(buffers: int, threads: ThreadPoolExecutor) -> None:
    device = Device(buffers)
    device.is_copied.set()
    stage = _host.Stage(device.buffers, device.record, threads)
    tensors = layouts()
    assert all(_host.is_dense(tensor) for tensor in tensors)
    copies = [stage.copy(tensor) for tensor in tensors]
    stage.empty()
    for tensor, copy in zip(tensors, copies):
        assert torch.equal(copy, tensor)
        assert (copy.dtype, copy.stride()) == (tensor.dtype, tensor.stride())
        assert copy.data_ptr() != tensor.data_ptr()


def test_buffer_is_not_filled_again_before_it_was_emptied(threads: ThreadPoolExecutor) -> None:
    device = Device(2)
    stage = _host.Stage(device.buffers, device.record, threads)
    large = torch.arange(5 * SIZE).to(torch.uint8)
    copying = threading.Thread(target=lambda: copies.append(stage.copy(large)))
    copies: list[torch.Tensor] = []
    copying.start()
    copying.join(0.2)
    assert (device.sent, device.waited) == (2, 0)  # both are full, and the third part waits
    device.is_copied.set()
    copying.join()
    stage.empty()
    assert (device.sent, device.waited) == (5, 5)
    assert torch.equal(copies[0], large)


def test_what_fails_in_a_thread_is_raised(threads: ThreadPoolExecutor) -> None:
    def broken() -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    stage = _host.Stage(Device(2).buffers, lambda: broken, threads)
    stage.copy(torch.zeros(SIZE, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="launch failure"):
        stage.empty()


def test_tensors_with_gaps_and_of_odd_kinds_do_not_come_through_buffers() -> None:
    numbers = torch.arange(24.0).reshape(4, 6)
    odd = [
        numbers[:, ::2],
        numbers[::2],
        numbers[:1].expand(4, 6),
        numbers.to(torch.complex64),
        torch._neg_view(numbers),
        torch.nn.Parameter(numbers),
    ]
    assert not any(_host.is_dense(tensor) for tensor in odd)


def test_copy_keeps_the_shape_of_what_is_copied_and_its_ties() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    state = OrderedDict(a=weight, b=weight, c=weight[:2])
    state._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]
    copy = _host.on_host({"model": state, "list": [weight, 1], "tuple": (None, "x"), "empty": torch.empty(0)})
    assert type(copy["model"]) is OrderedDict
    assert copy["model"]._metadata == {"": {"version": 1}}
    assert copy["model"]["a"] is copy["model"]["b"] is copy["list"][0]
    with torch.no_grad():
        weight.zero_()
    assert copy["model"]["a"].tolist() == [1, 1, 1]
    assert copy["model"]["c"].tolist() == [1, 1]
    assert not copy["model"]["a"].requires_grad
    assert copy["list"][1:] == [1]
    assert copy["tuple"] == (None, "x")
    assert copy["empty"].shape == (0,)
