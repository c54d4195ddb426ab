"""Importing modules from one folder for a while, for example the model code beside a checkpoint."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator


_in_use = threading.Lock()


@contextlib.contextmanager
def import_from_path(path: str | os.PathLike[str]) -> Generator[None, None, None]:
    """Import from `path` first, and forget the modules found there afterwards.

    Inside the block, modules with the same names as ones imported before are imported anew from `path`; after it,
    the old ones are back under their names. Give what you import a name of its own::

        import model_def as new_model_def
        with det.import_from_path(checkpoint_dir):
            import model_def as old_model_def

    Raises:
        FileNotFoundError: `path` is not a directory.
        RuntimeError: Within another such block, of this thread or another: both change what all of the process imports.
    """
    root = os.path.abspath(str(os.fspath(path)))
    if not os.path.isdir(root):
        raise FileNotFoundError(f"import_from_path: {root} is not a directory")
    if not _in_use.acquire(blocking=False):
        raise RuntimeError("import_from_path: it can't be nested, nor used by two threads; leave the other block first")
    old_path = sys.path[:]
    old_modules = dict(sys.modules)
    # A module that `path` also offers must be found anew; all others (numpy, torch) keep their identity.
    offered = {_module_name(entry) for entry in os.listdir(root)} - {""}
    hidden = {name for name in old_modules if name.partition(".")[0] in offered and _is_replaceable(old_modules[name])}
    for name in hidden:
        del sys.modules[name]
    sys.path.insert(0, root)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = old_path
        for name, module in list(sys.modules.items()):
            if name not in old_modules and _is_below(module, root):
                del sys.modules[name]
        for name in hidden:
            sys.modules[name] = old_modules[name]
        importlib.invalidate_caches()
        _in_use.release()


def _module_name(entry: str) -> str:
    stem, dot, extension = entry.partition(".")
    if dot and extension.rpartition(".")[2] not in ("py", "so", "pyc"):
        return ""
    return stem if stem.isidentifier() and stem != "__pycache__" else ""


def _is_replaceable(module: object) -> bool:
    # Built-in modules and this package can't be found twice in one interpreter.
    name = getattr(module, "__name__", "")
    return getattr(module, "__file__", None) is not None and name.partition(".")[0] not in ("determined", "importlib")


def _is_below(module: object, root: str) -> bool:
    file = getattr(module, "__file__", None)
    paths = [file] if file else list(getattr(module, "__path__", []) or [])
    return any(os.path.abspath(p).startswith(root + os.sep) for p in paths if isinstance(p, str))
