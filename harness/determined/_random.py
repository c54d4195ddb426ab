"""The states of the random numbers of this process: of Python, and of NumPy and PyTorch where they are in use."""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any


def derived(*parts: Any) -> int:
    """A seed of 64 bits that depends on all parts."""
    text = "|".join(map(repr, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def seed_all(seed: int) -> None:
    """Seed all states of the host by 64 bits."""
    numpy, torch = _in_use()
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    if torch is not None:
        # Not torch.manual_seed: it asks each GPU, or queues a call for each time that it is called before there is one.
        torch.default_generator.manual_seed(seed)


def capture() -> Any:
    """The states of the host as they are, for `restore`; None for what is not in use."""
    numpy, torch = _in_use()
    return random.getstate(), numpy and numpy.random.get_state(), torch and torch.get_rng_state()


def restore(states: Any) -> None:
    """Put back what `capture` returned."""
    numpy, torch = _in_use()
    random.setstate(states[0])
    if states[1] is not None:
        numpy.random.set_state(states[1])
    if states[2] is not None:
        torch.set_rng_state(states[2])


@contextlib.contextmanager
def forked(seed: int) -> Generator[None, None, None]:
    """Random states of their own for the block, seeded; the process' states do not move by it."""
    before = capture()
    seed_all(seed)
    try:
        yield
    finally:
        restore(before)


def _in_use() -> tuple[Any, Any]:
    return sys.modules.get("numpy"), sys.modules.get("torch")


# -- in a form that `torch.load(weights_only=True)` takes --------------------------------------------------------------


def random_state() -> dict[str, Any]:
    """That of Python, and of NumPy, PyTorch and its GPUs where they are in use."""
    state: dict[str, Any] = {"python": random.getstate()}
    numpy, torch = _in_use()
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = (kind, keys.tolist(), *rest)
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Draw on from `state`. GPUs that it does not know, or that are not there, stay as they are."""
    random.setstate(_as_tuple(state["python"]))
    if "numpy" in state:
        import numpy

        numpy.random.set_state(tuple(state["numpy"]))
    _, torch = _in_use()
    if "torch" in state and torch is not None:
        torch.set_rng_state(state["torch"].cpu())
        if "cuda" in state and torch.cuda.is_available():
            for device, known in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(known.cpu(), device)


def _as_tuple(state: Any) -> tuple[Any, ...]:
    version, numbers, gauss = state
    return version, tuple(numbers), gauss
