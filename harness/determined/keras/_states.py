"""What Keras does not store with a model's weights: random numbers, and how far callbacks have come."""

from __future__ import annotations

import keras

from determined._random import random_state, set_random_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: How far a callback of Keras has come; all else about it is an argument of its constructor.
_FIELDS = {
    "EarlyStopping": ("wait", "stopped_epoch", "best", "best_weights", "best_epoch"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "ModelCheckpoint": ("best", "_batches_seen_since_last_saving"),
}


def random_states(model: Any) -> dict[str, Any]:
    """The random numbers of this process, and those that the model's layers draw by themselves (dropout)."""
    state: dict[str, Any] = {"process": random_state(), "layers": [_plain(seed) for seed in _seeds(model)]}
    general = _general_seed()
    if general is not None:
        state["general"] = _plain(general)
    tensorflow = _tensorflow()
    if tensorflow is not None:
        state["tensorflow"] = tensorflow.random.get_global_generator().state.numpy().tolist()
    return state


def set_random_states(model: Any, state: dict[str, Any]) -> None:
    """Draw on from `state`, that of a model with the same layers."""
    set_random_state(state["process"])
    for seed, value in zip(_seeds(model), state["layers"]):
        _assign(seed, value)
    general = _general_seed()
    if general is not None and "general" in state:
        _assign(general, state["general"])
    tensorflow = _tensorflow()
    if tensorflow is not None and "tensorflow" in state:
        tensorflow.random.get_global_generator().state.assign(state["tensorflow"])


def callback_state(callback: Any) -> Any:
    """How far a callback has come: by its own `get_state`, or as is known of those of Keras.

    Raises:
        ValueError: Neither is known.
    """
    if hasattr(callback, "get_state"):
        return callback.get_state()
    return fields_of(callback)


def set_callback_state(callback: Any, state: Any) -> None:
    """Give a callback what `callback_state` has returned. Errors as there."""
    if hasattr(callback, "load_state"):
        callback.load_state(state)
        return
    set_fields(callback, state)


def fields_of(callback: Any) -> dict[str, Any]:
    """How far a callback of Keras has come."""
    return {name: getattr(callback, name) for name in _fields(callback) if hasattr(callback, name)}


def set_fields(callback: Any, state: dict[str, Any]) -> None:
    """Give a callback of Keras what `fields_of` has returned."""
    known = _fields(callback)
    for name, value in state.items():
        if name in known:
            setattr(callback, name, value)


def check_callback(callback: Any) -> None:
    """Raises: ValueError, if nothing is known of how far such a callback has come."""
    if not hasattr(callback, "get_state"):
        _fields(callback)


def has_state(callback: Any) -> bool:
    """Whether it is known how far such a callback has come."""
    return hasattr(callback, "get_state") or any(kind.__name__ in _FIELDS for kind in type(callback).__mro__)


def _fields(callback: Any) -> tuple[str, ...]:
    for kind in type(callback).__mro__:
        if kind.__name__ in _FIELDS:
            return _FIELDS[kind.__name__]
    raise ValueError(
        f"callbacks: {type(callback).__name__} has no get_state() and load_state(state), and is none of "
        f"{', '.join(sorted(_FIELDS))}: what is to be stored of it is not known"
    )


def _seeds(model: Any) -> list[Any]:
    return [variable for variable in model.variables if variable.name == "seed_generator_state"]


def _general_seed() -> Any:
    """The state of Keras' own generator, for layers and functions without one; None if this Keras has it elsewhere."""
    try:
        from keras.src.random.seed_generator import global_seed_generator
    except ImportError:
        return None
    return global_seed_generator().state  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _tensorflow() -> Any:
    if keras.backend.backend() != "tensorflow":
        return None
    import importlib

    return importlib.import_module("tensorflow")


def _plain(variable: Any) -> list[int]:
    return keras.ops.convert_to_numpy(variable).tolist()  # pyright: ignore


def _assign(variable: Any, value: list[int]) -> None:
    variable.assign(keras.ops.convert_to_tensor(value, dtype=variable.dtype))  # pyright: ignore
