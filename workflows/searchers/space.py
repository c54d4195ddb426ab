"""Points of a search space: drawn at random, or counted off along a grid.

Source: spec searchers.md §1 (sampling) and §4 (grid axes).
"""

import math
from fractions import Fraction
from typing import Any

from workflows.config import CategoricalHp, ConstHp, Hyperparameters, IntHp, LeafHp, LogHp, axis_size
from workflows.searchers.mt19937 import MT19937

Axis = tuple[tuple[str, ...], LeafHp | None]
"""A path into the hyperparameters and what is there; None for an empty map, which stays an empty map."""


def sample(space: Hyperparameters, rng: MT19937) -> dict[str, Any]:
    """Draw a value for every hyperparameter, names in byte order, so that a seed always gives the same ones."""
    result: dict[str, Any] = {}
    for name in _byte_order(space):
        value = space[name]
        result[name] = sample(value, rng) if isinstance(value, dict) else _sample_leaf(value, rng)
    return result


def _sample_leaf(leaf: LeafHp, rng: MT19937) -> Any:
    if isinstance(leaf, ConstHp):
        return leaf.val
    if isinstance(leaf, CategoricalHp):
        return leaf.vals[rng.below(len(leaf.vals))]
    if isinstance(leaf, IntHp):
        return leaf.minval + rng.below(leaf.maxval - leaf.minval + 1)
    drawn = rng.uniform(float(leaf.minval), float(leaf.maxval))
    return math.pow(leaf.base, drawn) if isinstance(leaf, LogHp) else drawn


def grid_axes(space: Hyperparameters, prefix: tuple[str, ...] = ()) -> list[Axis]:
    """One axis a leaf, names in byte order, nested maps flattened in place."""
    axes: list[Axis] = []
    for name in _byte_order(space):
        value, path = space[name], (*prefix, name)
        if not isinstance(value, dict):
            axes.append((path, value))
        elif value:
            axes.extend(grid_axes(value, path))
        else:
            axes.append((path, None))
    return axes


def grid_point(axes: list[Axis], index: int) -> dict[str, Any]:
    """The point at that place of the product of all axes, the last axis fastest; the product is never listed."""
    chosen: list[tuple[tuple[str, ...], Any]] = []
    for path, leaf in reversed(axes):
        index, place = divmod(index, 1 if leaf is None else axis_size(leaf))
        chosen.append((path, {} if leaf is None else axis_value(leaf, place)))
    point: dict[str, Any] = {}
    for path, value in reversed(chosen):
        node = point
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = value
    return point


def axis_value(leaf: LeafHp, place: int) -> Any:
    """The value at a place of an axis, places from 0."""
    if isinstance(leaf, ConstHp):
        return leaf.val
    if isinstance(leaf, CategoricalHp):
        return leaf.vals[place]
    count = axis_size(leaf)
    if isinstance(leaf, IntHp):
        span = leaf.maxval - leaf.minval
        # Exact: a float would lose the last digits of large numbers and move the halves.
        exact = (
            Fraction(leaf.minval + leaf.maxval, 2) if count == 1 else leaf.minval + Fraction(place * span, count - 1)
        )
        return _round_half_away(exact)
    low, high = float(leaf.minval), float(leaf.maxval)
    value = (low + high) / 2 if count == 1 else low + place * (high - low) / (count - 1)
    return math.pow(leaf.base, value) if isinstance(leaf, LogHp) else value


def _round_half_away(value: Fraction) -> int:
    rounded = math.floor(abs(value) + Fraction(1, 2))
    return rounded if value >= 0 else -rounded


def _byte_order(space: Hyperparameters) -> list[str]:
    # Surrogates cannot be encoded strictly, and code points sort as their UTF-8 bytes do anyway.
    return sorted(space)
