"""Random generators that a dataset holds: what they draw is not in the random states of the process."""

from __future__ import annotations

import collections
import functools
import random
import types
from typing import Any, cast

import numpy as np
import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_KINDS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
#: What has no generator of a dataset in it, and may have all sorts of things.
_CLOSED = (torch.Tensor, np.ndarray, types.ModuleType, type, types.FunctionType, str, bytes)
#: How far is searched: data may be large.
_DEPTH = 5
_ITEMS = 64
_OBJECTS = 2000


def find(**roots: Any) -> dict[str, Any]:
    """The generators within some objects, by their place, for example `dataset.transform.rng`."""
    found: dict[str, Any] = {}
    seen = {id(one) for one in _of_process()}
    waiting = collections.deque((name, root, 0) for name, root in roots.items())
    while waiting and len(seen) < _OBJECTS:
        name, value, depth = waiting.popleft()
        if id(value) in seen or isinstance(value, _CLOSED):
            continue
        seen.add(id(value))
        if isinstance(value, _KINDS):
            found[name] = value
        elif depth < _DEPTH:
            waiting.extend((name + part, inner, depth + 1) for part, inner in _parts(value))
    return found


def _of_process() -> Iterator[Any]:
    """Those of the process, which some hold as well."""
    yield torch.default_generator
    yield getattr(random.random, "__self__", None)
    yield getattr(np.random, "mtrand")._rand  # noqa: B009 (it is not in numpy's stubs)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, (list, tuple, dict)):
        items = (
            cast("dict[Any, Any]", value).items() if isinstance(value, dict) else enumerate(cast("list[Any]", value))
        )
        if len(cast("list[Any]", value)) <= _ITEMS:
            yield from ((f"[{key!r}]", item) for key, item in items)
    else:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from ((f".{name}", item) for name, item in cast("dict[str, Any]", attributes).items())


def states(generators: dict[str, Any]) -> dict[str, Any]:
    """The states of generators by their place, for `restore`."""
    return {name: _state(generator) for name, generator in generators.items()}


def restore(generators: dict[str, Any], states: dict[str, Any]) -> bool:
    """Put generators into the states of another run; False if that had others."""
    if {name: type(_state(one)) for name, one in generators.items()} != {name: type(s) for name, s in states.items()}:
        return False
    for name, generator in generators.items():
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = states[name]
        elif isinstance(generator, random.Random):
            generator.setstate(states[name])
        else:
            generator.set_state(states[name])
    return True


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()
