"""The random states of the process: Python's, NumPy's, PyTorch's on the CPU, and of a rank's device."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import torch

from determined._random import capture, derived, forked, restore, seed_all

__all__ = [
    "capture",
    "derived",
    "forked",
    "restore",
    "restore_states",
    "seed_all",
    "seed_rank",
    "states_of",
]

logger = logging.getLogger("determined.pytorch")


def seed_rank(seed: int) -> None:
    """Seed all states, of all devices too, as users do themselves: each library gets the seed as it is."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]


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
