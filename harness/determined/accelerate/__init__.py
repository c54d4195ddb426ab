"""Hugging Face's accelerate as a trial: a tracker for `log_with`, and its states as the trial's checkpoints.

Example::

    accelerator = Accelerator(log_with=DeterminedTracker(core_context))
    accelerator.init_trackers("digits")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    steps = load_state(core_context, accelerator)
    …
        accelerator.log({"loss": loss.item()}, step=steps)
        if core_context.preempt.should_preempt():
            save_state(core_context, accelerator, steps)
            return
"""

from __future__ import annotations

try:
    import accelerate as _  # noqa: F401 - whether it is there
except ImportError as e:
    if e.name != "accelerate":
        raise
    from determined._extras import missing

    raise missing(__name__, "accelerate", "accelerate") from e

from determined.accelerate._state import load_state, save_state
from determined.accelerate._tracker import DeterminedTracker

__all__ = ["DeterminedTracker", "load_state", "save_state"]
