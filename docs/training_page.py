"""Makes docs/reference/training-apis.md: which names of Determined's training APIs are here.

The names are on record (`docs/training/names-*.json`, which `docs/training/record.py` writes), and what is here is read
from the source of the harness, so that nothing of PyTorch, Keras or the others is imported for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import griffe

HERE = Path(__file__).resolve().parent
CLIENTS = ("0.38.1", "0.21.0")
#: What a name does otherwise. A name that is here and not among these works as its users know it.
DIFFERS = {
    "determined.transformers.DetCallback": "preemption is asked for after each step; operations are followed",
    "determined.keras.DeterminedCallback": "Keras 3, on any backend; `callbacks=[…]` stores the states of others",
    "determined.keras.TFKerasTensorBoard": "Keras 3",
    "determined.keras.TFKerasTrial": "Keras 3, on any backend, and one slot",
    "determined.keras.TFKerasTrialContext": "one slot: nothing is sharded",
    "determined.keras.callbacks.TensorBoard": "Keras 3",
    "determined.keras.load_model_from_checkpoint_path": "weights of Keras 3, and HDF5 of Keras 2",
    "determined.keras.TensorBoard": "Keras 3",
    "determined.pytorch.deepspeed.DeepSpeedTrial": "on CPUs too; "
    "[what else](../training-deepspeed.md#what-differs-from-determineds)",
    "determined.launch.deepspeed": "one machine; on several `determined.launch.torch_distributed` starts its workers",
    "determined.launch.horovod": "one machine; on several use `determined.launch.torch_distributed`",
    "determined.tensorboard.metric_writers.pytorch.TorchWriter": "`writer` is PyTorch's own SummaryWriter",
    "determined.core.SearcherContext": "operations come from the searcher, as in 0.21",
}
_INTERNAL = "internal there"
_OWN_PACKAGE = "[with Determined's own package](../trial-python.md#trial-classes)"
_OFF_CLUSTER = "internal there: `core.init()` gives these outside of a cluster"
#: What to do without a name; the longest beginning of a name that is here counts.
NOT = {
    "determined": _INTERNAL,
    "determined.core.Dummy": _OFF_CLUSTER,
    "determined.core.SearcherContextMissing": _INTERNAL,
    "determined.pytorch": _INTERNAL,
    "determined.pytorch.deepspeed": _INTERNAL,
    "determined.pytorch.lightning": "`determined.lightning.DeterminedCallback` in a `lightning.Trainer`",
    "determined.keras": _INTERNAL,
    "determined.keras.TFKerasTrialController": _INTERNAL,
    "determined.keras.TFKerasTrainConfig": _INTERNAL,
    "determined.keras.get_rng_state": "internal there: checkpoints have the random numbers",
    "determined.keras.set_rng_state": "internal there: checkpoints have the random numbers",
    "determined.estimator": "TensorFlow has removed estimators: use `determined.keras.DeterminedCallback`",
    "determined.tensorboard.metric_writers.tensorflow": "`keras.callbacks.TensorBoard`, or `tf.summary` with "
    "`core_context.train.get_tensorboard_path()`",
    "determined.layers": _INTERNAL,
}
#: How Determined's own parts find each other; no user's code has them.
_MEMBERS_INTERNAL = {
    "trial_context_class",
    "trial_controller_class",
    "from_config",
    "set_params",
    "run_cross_slot_reduction",
    "on_predict_begin",
    "on_predict_batch_end",
    "on_predict_end",
}
_HEAD = """# Training APIs, by name

Generated from the names of `determined` 0.38.1 and 0.21.0 as published (`docs/training/`) and from the source of our
harness. How to use what is here: [Train with transformers, Lightning, Keras and accelerate](../training-libraries.md),
and the [Core API](core.md).

- **works**: the name is here, with all that its class offers there.
- **differs**: it is here, and does something else as well, or less: the cell says what.
- **not**: it is not here; the cell says what to use in its place.
- —: that release does not have it.
"""


@dataclass(frozen=True)
class Row:
    """A name, in which releases it is, and how it is here: "works", "differs: …" or "not: …"."""

    module: str
    name: str
    clients: tuple[str, ...]
    here: str
    members: tuple[str, ...] = ()
    """Of a class that is here: those of its members that are, too."""


def rows() -> list[Row]:
    """All of them, by module."""
    recorded = {client: json.loads((HERE / "training" / f"names-{client}.json").read_text()) for client in CLIENTS}
    package = griffe.load("determined", search_paths=[str(HERE.parent / "harness")])
    modules = list(dict.fromkeys(module for names in recorded.values() for module in names))
    found: list[Row] = []
    for module in modules:
        clients = tuple(client for client in CLIENTS if module in recorded[client])
        if module.startswith("determined.launch."):
            found.append(Row(module, "", clients, _here(package, module, "", [])[0]))
            continue
        for name in sorted({name for client in clients for name in recorded[client][module]}):
            of = tuple(client for client in clients if name in recorded[client][module])
            # What the newest release that has it offers.
            members = [each for each in recorded[of[0]][module][name] if each not in _MEMBERS_INTERNAL]
            found.append(Row(module, name, of, *_here(package, module, name, members)))
    return found


def _here(
    package: griffe.Object | griffe.Alias, module: str, name: str, members: list[str]
) -> tuple[str, tuple[str, ...]]:
    full = f"{module}.{name}" if name else module
    try:
        place = package[module.partition(".")[2]] if module != "determined" else package
        if not name:
            return f"differs: {DIFFERS[full]}" if full in DIFFERS else "works", ()
        if place.exports is not None and name not in [str(each) for each in place.exports]:
            raise KeyError(name)
        target = place[name]
        if target.is_alias:
            target = target.final_target
        # What a class of Keras, Lightning or others brings is not read here; the test of this page imports it.
        is_known = target.is_class and not _has_foreign_base(target)
        lacking = [each for each in members if is_known and each not in target.all_members]
    except (KeyError, griffe.AliasResolutionError):
        return f"not: {_instead(full)}", ()
    told = [DIFFERS[full]] if full in DIFFERS else []
    told += [f"without {', '.join(f'`{each}`' for each in lacking)}"] if lacking else []
    return f"differs: {'; '.join(told)}" if told else "works", tuple(m for m in members if m not in lacking)


def _has_foreign_base(target: griffe.Object | griffe.Alias) -> bool:
    classes = [target, *target.mro()]
    return any(not str(base).rpartition("|")[2].startswith("determined") for each in classes for base in _bases(each))


def _bases(target: griffe.Object | griffe.Alias) -> list[str]:
    return [getattr(base, "canonical_path", str(base)) for base in getattr(target, "bases", [])]


def _instead(full: str) -> str:
    return NOT[max((known for known in NOT if full.startswith(known)), key=len)]


def page() -> str:
    """The page as Markdown."""
    found = rows()
    lines = [_HEAD]
    for module in dict.fromkeys(row.module for row in found):
        of = [row for row in found if row.module == module]
        lines += [f"## {module}", ""]
        lines += [f"| {' | '.join(['name', *CLIENTS, 'here'])} |", f"|{' --- |' * (len(CLIENTS) + 2)}"]
        for row in of:
            cells = ["yes" if client in row.clients else "—" for client in CLIENTS]
            shown = f"`{row.name}`" if row.name else f"`python3 -m {module}`"
            lines.append(f"| {' | '.join([shown, *cells, row.here])} |")
        lines.append("")
    return "\n".join(lines)
