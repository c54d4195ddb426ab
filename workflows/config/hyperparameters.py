"""The search space: what a hyperparameter may be, and how large a grid over it is.

Source: spec experiment-config.md §5, searchers.md §4.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast

from pydantic import Discriminator, Field, Tag
from typing_extensions import TypeAliasType

from workflows.config.base import INT64_MAX, Number, Section

_COUNT = "Number of points on this axis; only a grid search reads it, and needs it."


class ConstHp(Section):
    """The same value in every trial."""

    type: Literal["const"] = "const"
    val: Any = Field(description="The value; any JSON.")


class IntHp(Section):
    """A whole number, both ends included."""

    type: Literal["int"] = "int"
    minval: int = Field(ge=-INT64_MAX - 1, le=INT64_MAX, description="Smallest value.")
    maxval: int = Field(ge=-INT64_MAX - 1, le=INT64_MAX, description="Largest value; more than minval.")
    count: int | None = Field(default=None, ge=1, le=INT64_MAX, description=_COUNT)


class DoubleHp(Section):
    """A real number, uniform between the ends."""

    type: Literal["double"] = "double"
    minval: Number = Field(description="Smallest value.")
    maxval: Number = Field(description="Largest value; more than minval.")
    count: int | None = Field(default=None, ge=1, le=INT64_MAX, description=_COUNT)


class LogHp(Section):
    """A real number whose logarithm is uniform: base ** x with x between minval and maxval."""

    type: Literal["log"] = "log"
    base: Number = Field(gt=0, description="Base of the power.")
    minval: Number = Field(description="Smallest exponent.")
    maxval: Number = Field(description="Largest exponent; more than minval.")
    count: int | None = Field(default=None, ge=1, le=INT64_MAX, description=_COUNT)


class CategoricalHp(Section):
    """One of a list of values."""

    type: Literal["categorical"] = "categorical"
    vals: list[Any] = Field(min_length=1, description="The values; any JSON, also null, maps and lists.")


LeafHp = ConstHp | IntHp | DoubleHp | LogHp | CategoricalHp
LEAF_TYPES: dict[str, type[LeafHp]] = {
    "int": IntHp,
    "double": DoubleHp,
    "log": LogHp,
    "const": ConstHp,
    "categorical": CategoricalHp,
}
# Punctuation as the peer prints it.
HP_TYPE_MESSAGE = (
    'if a hyperparameter object\'s ["type"] is set, it must be one of "int", "double", "log", const", or "categorical"'
)


def _tag(value: Any) -> str:
    if isinstance(value, dict):
        return str(cast(dict[str, Any], value).get("type", "nested"))
    return str(getattr(value, "type", "nested"))


if TYPE_CHECKING:
    # Pyright does not follow a recursive Annotated.
    Hyperparameter: TypeAlias = "LeafHp | dict[str, Hyperparameter]"
else:
    Hyperparameter = TypeAliasType(
        "Hyperparameter",
        Annotated[
            Annotated[ConstHp, Tag("const")]
            | Annotated[IntHp, Tag("int")]
            | Annotated[DoubleHp, Tag("double")]
            | Annotated[LogHp, Tag("log")]
            | Annotated[CategoricalHp, Tag("categorical")]
            | Annotated[dict[str, "Hyperparameter"], Tag("nested")],
            Discriminator(_tag),
        ],
    )
"""A leaf, or a map of further hyperparameters."""

Hyperparameters = dict[str, Hyperparameter]


def normalize_hyperparameters(raw: dict[str, Any]) -> dict[str, Any]:
    """Spell implicit constants out: ``lr: 1`` becomes ``lr: {type: const, val: 1}``; nested maps are kept."""
    return {name: _normalize(value) for name, value in raw.items()}


def _normalize(value: Any) -> Any:
    if not isinstance(value, dict):
        return {"type": "const", "val": value}
    fields = cast(dict[str, Any], value)
    if "type" not in fields:
        return normalize_hyperparameters(fields)
    if fields.get("count", 0) is None:  # null means absent, as for every optional key
        return {key: item for key, item in fields.items() if key != "count"}
    return fields


def axis_size(leaf: LeafHp) -> int:
    """Points that a leaf contributes to a grid; 0 when it lacks the count that a grid needs."""
    if isinstance(leaf, ConstHp):
        return 1
    if isinstance(leaf, CategoricalHp):
        return len(leaf.vals)
    if leaf.count is None:
        return 0
    if isinstance(leaf, IntHp):
        return min(leaf.count, leaf.maxval - leaf.minval + 1)
    return leaf.count


def grid_size(space: Hyperparameters) -> int:
    """Points of the grid over `space`, computed without listing them; an empty space has none."""
    if not space:
        return 0
    size = 1
    for value in space.values():
        if isinstance(value, dict):
            # An empty nested map is an axis with the one value {}.
            size *= grid_size(value) if value else 1
        else:
            size *= axis_size(value)
    return size
