"""JupyterLab as `python -m jupyterlab` runs it, which answers in half the time."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# By what jsonschema checks international addresses. It builds 38 parsers when it is imported, which was half of what
# Jupyter did before it answered; no schema of Jupyter's has such an address.
_PARSERS = "rfc3987_syntax"


def put_off(name: str) -> None:
    """Have a package that is for its functions only imported at the first call of one. One that is missing stays so."""
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is not None:
        later = _Later(name)
        later.__spec__, later.__path__ = spec, list(spec.submodule_search_locations or ())
        sys.modules[name] = later


class _Later(types.ModuleType):
    """In place of a package: whatever it is asked for is a function."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments: Any, **named: Any) -> Any:
            if sys.modules[self.__name__] is self:
                del sys.modules[self.__name__]
            return getattr(importlib.import_module(self.__name__), name)(*arguments, **named)

        return call


if __name__ == "__main__":
    put_off(_PARSERS)
    runpy.run_module("jupyterlab", run_name="__main__", alter_sys=True)
