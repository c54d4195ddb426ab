"""Names of a package that are imported when they are first used: PyTorch takes seconds, and may not be there."""

from __future__ import annotations

import importlib


def attribute(package: str, name: str, homes: dict[str, str], submodules: tuple[str, ...] = ()) -> object:
    """What `package.name` is: a submodule, or what the module `homes[name]` of the package has.

    A home that begins with a dot is a module beside the package.

    Raises:
        AttributeError: It is neither.
        ImportError: PyTorch is not installed.
    """
    if name in submodules:
        return importlib.import_module(f"{package}.{name}")
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f".{homes[name]}", package), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        from determined._extras import missing

        raise missing(package, "torch", "pytorch") from None
