"""Searches of your own: a `SearchMethod` decides, a runner carries its decisions to an experiment.

The experiment has `searcher: {name: custom, …}`. The cluster queues what happens to its trials; the runner hands each
event to the method and posts the operations that the method answers with. `LocalSearchRunner` runs anywhere,
`RemoteSearchRunner` inside of a trial of its own. Both may die at any moment and go on where they were.
"""

from __future__ import annotations

from determined.searcher._operations import Close, Create, Operation, Progress, Shutdown, ValidateAfter
from determined.searcher._search_method import ExitedReason, SearcherState, SearchMethod
from determined.searcher._search_runner import SearchRunner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determined.searcher._local_search_runner import LocalSearchRunner
    from determined.searcher._remote_search_runner import RemoteSearchRunner

__all__ = [
    "Close",
    "Create",
    "ExitedReason",
    "LocalSearchRunner",
    "Operation",
    "Progress",
    "RemoteSearchRunner",
    "SearchMethod",
    "SearchRunner",
    "SearcherState",
    "Shutdown",
    "ValidateAfter",
]

_HOME = {
    "LocalSearchRunner": "determined.searcher._local_search_runner",
    "RemoteSearchRunner": "determined.searcher._remote_search_runner",
}


def __getattr__(name: str) -> object:
    import importlib

    if name not in _HOME:
        raise AttributeError(f"module 'determined.searcher' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return value
