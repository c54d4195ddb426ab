"""The states of the random numbers of this process, in a form that `torch.load(weights_only=True)` takes."""

from __future__ import annotations

import random
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def random_state() -> dict[str, Any]:
    """That of Python, and of NumPy, PyTorch and its GPUs where they are in use."""
    state: dict[str, Any] = {"python": random.getstate()}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = (kind, keys.tolist(), *rest)
    torch: Any = sys.modules.get("torch")
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
    torch: Any = sys.modules.get("torch")
    if "torch" in state and torch is not None:
        torch.set_rng_state(state["torch"].cpu())
        if "cuda" in state and torch.cuda.is_available():
            for device, known in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(known.cpu(), device)


def _as_tuple(state: Any) -> tuple[Any, ...]:
    version, numbers, gauss = state
    return version, tuple(numbers), gauss
