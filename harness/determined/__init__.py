"""The package that runs beside training code.

`determined.core` is for training code inside of a task, `determined.experimental.client` for scripts outside.

Importing it loads nothing else: names are fetched when they are used.
"""

from __future__ import annotations

__version__ = "0.1.0"

LOG_FORMAT = "%(levelname)s: [%(process)s] %(name)s: %(message)s"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determined import core, errors, util
    from determined._import import import_from_path
    from determined._info import ClusterInfo, RendezvousInfo, ResourcesInfo, TrialInfo, get_cluster_info
    from determined._trial_context import EnvContext, LegacyTrial, TrialContext, TrialController
    from determined._trial_context import LegacyTrial as Trial
    from determined.errors import InvalidHP

__all__ = [
    "LOG_FORMAT",
    "ClusterInfo",
    "EnvContext",
    "InvalidHP",
    "LegacyTrial",
    "RendezvousInfo",
    "ResourcesInfo",
    "Trial",
    "TrialContext",
    "TrialController",
    "TrialInfo",
    "__version__",
    "core",
    "errors",
    "get_cluster_info",
    "import_from_path",
    "util",
]

_HOME = {
    "ClusterInfo": "determined._info",
    "RendezvousInfo": "determined._info",
    "ResourcesInfo": "determined._info",
    "TrialInfo": "determined._info",
    "get_cluster_info": "determined._info",
    "import_from_path": "determined._import",
    "InvalidHP": "determined.errors",
    **dict.fromkeys(("EnvContext", "LegacyTrial", "TrialContext", "TrialController"), "determined._trial_context"),
}


def __getattr__(name: str) -> object:
    import importlib

    if name == "Trial":  # as it was called until 0.21
        name = "LegacyTrial"
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    elif name in ("core", "errors", "util"):
        value = importlib.import_module(f"determined.{name}")
    else:
        raise AttributeError(f"module 'determined' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
