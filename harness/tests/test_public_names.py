"""The names that user code imports."""

from __future__ import annotations

import importlib
import inspect
import sys

import pytest

MODULES = [
    "determined",
    "determined.core",
    "determined.experimental",
    "determined.experimental.client",
    "determined.common.api",
    "determined.common.api.errors",
    "determined.common.storage",
    "determined.common.experimental.session",
    "determined.pytorch",
    "determined.pytorch.deepspeed",
    "determined.pytorch.experimental",
    "determined.pytorch.samplers",
    "determined.searcher",
]


@pytest.mark.parametrize("name", MODULES)
def test_all_names_exist_and_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    for public in module.__all__:
        value = getattr(module, public)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{name}.{public} has no docstring"


def test_every_error_belongs_to_the_tree_that_its_module_draws() -> None:
    from determined import errors

    drawn = errors.__doc__ or ""
    for name, value in vars(errors).items():
        if inspect.isclass(value) and value.__module__ == errors.__name__:
            assert issubclass(value, errors.DeterminedException)
            assert name in drawn


@pytest.mark.parametrize(
    ("module", "library"),
    [(name, name) for name in ("transformers", "lightning", "keras", "accelerate")],
)
def test_missing_library_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, module: str, library: str
) -> None:
    for name in [name for name in sys.modules if name.startswith(f"determined.{module}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError) as raised:
        importlib.import_module(f"determined.{module}")
    assert str(raised.value) == (
        f"determined.{module} needs {library}, which is not installed here: pip install 'undeterred-harness[{module}]'"
    )


def test_missing_deepspeed_is_named_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    from determined.pytorch import deepspeed

    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(ImportError) as raised, deepspeed.init():
        pass
    assert str(raised.value) == (
        "determined.pytorch.deepspeed needs deepspeed, which is not installed here: pip install "
        "'undeterred-harness[deepspeed]'"
    )


def test_an_unknown_name_is_an_attribute_error() -> None:
    import determined
    from determined.common import api
    from determined.pytorch import deepspeed

    for module in (determined, api, deepspeed):
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            getattr(module, "nonsense")  # noqa: B009
