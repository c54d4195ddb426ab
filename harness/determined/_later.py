"""What this package does not have yet, and what to do until it has."""

from __future__ import annotations

#: Trial classes run with Determined's own package, as published.
WITH_DETERMINED = (
    "run it in a Python with Determined's own package (python3 -m venv V; V/bin/pip install determined==0.38.1 torch "
    "tensorboard; UNDETERRED_TRIAL_PYTHON=V/bin/python det up) or in an image that has it"
)


def gone(name: str, instead: str) -> ImportError:
    """The error for an import of a name that Determined had and this harness leaves out."""
    return ImportError(f"{name} is not in this harness: {instead}", name=name)
