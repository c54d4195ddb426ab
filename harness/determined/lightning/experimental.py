"""`DetLogger`: metrics of a training that the cluster did not start. Source: spec training-apis.md §10."""

from __future__ import annotations

from determined.lightning._logger import DetLogger

__all__ = ["DetLogger"]
