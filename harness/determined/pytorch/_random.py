"""The random states of the process: python's, numpy's, torch's on the CPU."""

from __future__ import annotations

import contextlib
import hashlib
import random
from typing import Any

import numpy as np
import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator


def derived(*parts: Any) -> int:
    """A seed of 64 bits that depends on all parts."""
    text = "|".join(map(repr, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def seed_all(seed: int) -> None:
    """Seed all states by 64 bits."""
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    # Not torch.manual_seed: it asks each GPU, or queues a call for each time that it is called before there is one.
    torch.default_generator.manual_seed(seed)


def capture() -> Any:
    """All states as they are, for `restore`."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def restore(states: Any) -> None:
    """Put back what `capture` returned."""
    python, numpy, cpu = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)


@contextlib.contextmanager
def forked(seed: int) -> Generator[None, None, None]:
    """Random states of their own for the block, seeded; the process' states do not move by it."""
    before = capture()
    seed_all(seed)
    try:
        yield
    finally:
        restore(before)
