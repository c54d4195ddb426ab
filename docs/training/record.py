"""Records which public names a published `determined` has for training code; run it with that package's own Python:

    .venv-compat-0.38.1/bin/python docs/training/record.py 0.38.1 .venv/lib/python3.11/site-packages

Only names and members are read, by importing. What the package is built upon and is not installed beside it (the second
argument adds a folder to look in) is stood in for by empty classes.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: Run with `python3 -m`, and not imported.
PROGRAMS = ("torch_distributed", "deepspeed", "horovod", "tensorflow", "wrap_rank")
MODULES = (
    "determined",
    "determined.core",
    "determined.pytorch",
    "determined.pytorch.samplers",
    "determined.pytorch.experimental",
    "determined.pytorch.deepspeed",
    "determined.pytorch.lightning",
    "determined.keras",
    "determined.keras.callbacks",
    "determined.estimator",
    "determined.transformers",
    "determined.lightning.experimental",
    "determined.experimental.core_v2",
    "determined.util",
    "determined.gpu",
    "determined.tensorboard.metric_writers.pytorch",
    "determined.tensorboard.metric_writers.tensorflow",
    "determined.layers",
)
STOOD_IN = ("tensorflow", "tensorflow_estimator", "keras", "deepspeed", "horovod", "apex", "pytorch_lightning")
_INTERNAL = ("__internal__",)


class _Anything(type):
    """Classes whose every attribute is one more of them."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name not in _INTERNAL:
            raise AttributeError(name)
        made = _Anything(name, (), {"__init__": lambda self, *a, **k: None})
        setattr(cls, name, made)
        return made


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name in ("__version__", "VERSION"):
            return "2.14.0"
        if name.startswith("__") and name not in _INTERNAL:
            raise AttributeError(name)
        made = _Anything(name, (), {"__init__": lambda self, *a, **k: None})
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] in STOOD_IN:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return _StandIn(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def names(module: Any) -> dict[str, list[str]]:
    """Public name -> public members, if it is a class of the package."""
    found: dict[str, list[str]] = {}
    for name in sorted(getattr(module, "__all__", None) or dir(module)):
        value = getattr(module, name)
        home = getattr(value, "__module__", None) or ""
        if name.startswith("_") or inspect.ismodule(value):
            continue
        if not home.startswith("determined") and not (name.isupper() and isinstance(value, (str, int, float))):
            continue
        members: list[str] = []
        if inspect.isclass(value):
            own = [k for k in value.__mro__ if k.__module__.startswith("determined")]
            members = sorted({m for k in own for m in vars(k) if not m.startswith("_")})
        found[name] = members
    return found


def main() -> None:
    """Write `names-<version>.json`."""
    version, *folders = sys.argv[1:]
    sys.path += folders
    sys.meta_path.insert(0, _Finder())
    warnings.simplefilter("ignore")
    recorded: dict[str, dict[str, list[str]]] = {}
    for name in MODULES:
        try:
            recorded[name] = names(importlib.import_module(name))
        except Exception as error:  # noqa: BLE001 - to be looked at by who records
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
    for name in PROGRAMS:
        with contextlib.suppress(ImportError):
            if importlib.util.find_spec(f"determined.launch.{name}"):
                recorded[f"determined.launch.{name}"] = {}
    (HERE / f"names-{version}.json").write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
