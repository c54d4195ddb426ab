"""The random states of the process: Python's, NumPy's, PyTorch's on the CPU, and of a rank's device."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
from typing import Any

import numpy as np
import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

logger = logging.getLogger("determined.pytorch")


def derived(*parts: Any) -> int:
    """A seed of 64 bits that depends on all parts."""
    text = "|".join(map(repr, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def seed_all(seed: int) -> None:
    """Seed all states of the host by 64 bits."""
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    # Not torch.manual_seed: it asks each GPU, or queues a call for each time that it is called before there is one.
    torch.default_generator.manual_seed(seed)


def seed_rank(seed: int) -> None:
    """Seed all states, of all devices too, as users do themselves: each library gets the seed as it is."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]


def capture() -> Any:
    """The states of the host as they are, for `restore`."""
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


# -- in checkpoints ----------------------------------------------------------------------------------------------------


def states_of(device: torch.device) -> dict[str, Any]:
    """The states of this rank, by the names that they have in checkpoints. Source: spec training-apis.md §5."""
    python, numpy, cpu = capture()
    states: dict[str, Any] = {"cpu_rng_state": cpu, "random_rng_state": python, "np_rng_state": numpy}
    if device.type == "cuda":
        states["gpu_rng_state"] = torch.cuda.get_rng_state(device)
    return states


def restore_states(states: dict[str, Any], device: torch.device) -> None:
    """Take back what `states_of` returned, of this package or of another. What is missing is reported in the log."""
    if not states:
        logger.warning("the checkpoint has no random states: what comes differs from a run that was not disturbed")
        return
    if "cpu_rng_state" in states:
        torch.set_rng_state(states["cpu_rng_state"].cpu())
    if "random_rng_state" in states:
        random.setstate(_as_tuple(states["random_rng_state"]))
    if "np_rng_state" in states:
        np.random.set_state(states["np_rng_state"])
    if device.type != "cuda":
        if "gpu_rng_state" in states:
            logger.warning("the checkpoint has random states of a GPU, and this rank has none")
        return
    if "gpu_rng_state" in states:
        torch.cuda.set_rng_state(states["gpu_rng_state"].cpu(), device)
    else:
        logger.warning("the checkpoint has no random states of a GPU: what comes differs from an undisturbed run")


def _as_tuple(state: Any) -> Any:
    return tuple(_as_tuple(item) for item in state) if isinstance(state, (list, tuple)) else state  # pyright: ignore
