"""The schema for editors: valid in itself, and of one mind with the validator."""

import json
import subprocess
import sys
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from test_parse import FULL, SMALL
from test_problems import GOOD, OBSERVED

from workflows.config import ConfigError, experiment_config_json_schema, parse_experiment_config
from workflows.config.check import check_written
from workflows.config.yamltext import parse_text

SCHEMA = experiment_config_json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


def test_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert "x-" not in {key[:2] for key in _keys(SCHEMA)}
    json.dumps(SCHEMA, allow_nan=False)


def _keys(node: Any) -> list[str]:
    if isinstance(node, dict):
        return [*node, *(key for value in node.values() for key in _keys(value))]
    return [key for item in node for key in _keys(item)] if isinstance(node, list) else []


def test_every_key_is_described() -> None:
    models = [SCHEMA, *(SCHEMA["$defs"][name] for name in SCHEMA["$defs"] if name != "Hyperparameter")]
    bare = [key for model in models for key, prop in model["properties"].items() if "description" not in prop]
    # The tag of a range says what it is by its value.
    assert set(bare) <= {"type"}


PBT: dict[str, Any] = {
    **SMALL,
    "searcher": {
        "name": "pbt",
        "metric": "loss",
        "population_size": 4,
        "num_rounds": 3,
        "length_per_round": {"epochs": 1},
        "replace_function": {"truncate_fraction": 0.5},
        "explore_function": {"resample_probability": 0, "perturb_factor": 0.5},
        "source_trial_id": 3,
    },
}
OPTUNA: dict[str, Any] = {
    **SMALL,
    "hyperparameters": {"net": {"lr": {"type": "double", "minval": 0, "maxval": 1}}},
    "searcher": {
        "name": "optuna",
        "metric": "loss",
        "max_trials": 4,
        "max_concurrent_trials": 2,
        "max_length": {"batches": 10},
        "sampler": "gp",
        "sampler_options": {"n_startup_trials": 5, "deterministic_objective": True},
    },
}
CUSTOM: dict[str, Any] = {
    **SMALL,
    "searcher": {"name": "custom", "metric": "loss", "unit": "epochs", "smaller_is_better": False},
}

GOOD_CONFIGS: list[Any] = [
    parse_text(FULL).value,
    SMALL,
    PBT,
    OPTUNA,
    CUSTOM,
    {"searcher": {"sampler": "qmc", "population_size": 3, "replace_function": None}},
    {},
    {"checkpoint_storage": {"save_trial_best": 3}},
    {"searcher": {"max_trials": 3}},
    {"searcher": {"name": "custom", "metric": "m", "mine": 1}},
    {"name": None, "labels": {"a": True}, "environment": {"image": {"gpu": "x"}}, "version": 0, "internal": None},
    {"hyperparameters": {"a": {"b": {"type": "const", "val": None}, "c": [{"type": "x"}], "d": {}}}},
    {"searcher": {"name": "single", "max_length": 5}},
    {
        "log_policies": [{"action": {"type": "exclude_node"}}],
        "resources": {"devices": ["/a:/b", {"host_path": "/a", "container_path": "/b"}]},
    },
]


@pytest.mark.parametrize("config", GOOD_CONFIGS)
def test_good_config_satisfies_the_schema(config: Any) -> None:
    assert [e.message for e in VALIDATOR.iter_errors(config)] == []
    assert check_written(config) == []


def test_what_the_server_emits_satisfies_the_schema() -> None:
    for config in (parse_text(FULL).value, SMALL, PBT, OPTUNA, CUSTOM):
        wire = parse_experiment_config(config, seed=1).to_wire()
        assert [e.message for e in VALIDATOR.iter_errors(wire)] == []


BAD_CONFIGS: list[Any] = [config for config, _ in OBSERVED] + [
    {"searcher": {"nam": "single"}},
    {"searcher": {"name": "single", "max_trials": 1}},
    {"searcher": {"name": "pbt", "population_size": 1}},
    {"searcher": {"name": "pbt", "replace_function": {"truncate_fraction": 0.51}}},
    {"searcher": {"name": "pbt", "explore_function": {"perturb_factor": 1}}},
    {"searcher": {"name": "optuna", "sampler": "bayes"}},
    {"searcher": {"name": "optuna", "sampler_options": []}},
    {"searcher": {"name": "custom", "unit": "steps"}},
    {"searcher": {"name": "single", "max_length": {"batches": 1, "epochs": 1}}},
    {"searcher": 5},
    {"checkpoint_storage": {"bukket": "x"}},
    {"hyperparameters": {"a": {"b": {"type": "int"}}}},
    {"hyperparameters": {"a": {"type": {"type": "int"}}}},
    {"hyperparameters": 5},
    {"environment": {"environment_variables": [1]}},
    {"resources": {"shm_size": "1 gi"}},
    {"resources": {"devices": [5]}},
    {"log_policies": [{"action": "explode"}]},
    {"log_policies": [{"action": {}}]},
    {"bind_mounts": [{"host_path": None, "container_path": "/x"}]},
    {"internal": 5},
    [],
]


@pytest.mark.parametrize("config", BAD_CONFIGS)
def test_bad_config_violates_the_schema(config: Any) -> None:
    assert list(VALIDATOR.iter_errors(config))
    assert check_written(config)


@pytest.mark.parametrize("base", [parse_text(FULL).value, PBT, OPTUNA, CUSTOM], ids=["full", "pbt", "optuna", "custom"])
def test_editors_and_the_server_agree_on_every_small_change(base: dict[str, Any]) -> None:
    for path in _paths(base):
        for value in (None, True, -1, "text", [1], {"zzz": 1}):
            changed = json.loads(json.dumps(base))
            node = changed
            for part in path[:-1]:
                node = node[part]
            node[path[-1]] = value
            ours = not check_written(changed)
            assert VALIDATOR.is_valid(changed) == ours, (path, value, check_written(changed))


def _paths(node: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [p for key, value in items for p in ((*prefix, key), *_paths(value, (*prefix, key)))]


@pytest.mark.parametrize(
    "config", [parse_text(FULL).value, PBT, OPTUNA, CUSTOM], ids=["full", "pbt", "optuna", "custom"]
)
def test_whatever_passes_the_checks_can_be_parsed_or_is_refused_with_reasons(config: dict[str, Any]) -> None:
    base = {**config, **{k: v for k, v in GOOD.items() if k == "checkpoint_storage"}}
    for path in _paths(base):
        for value in (None, True, 0, 1.5, "text", "", ["a"], {}):
            changed = json.loads(json.dumps(base))
            node = changed
            for part in path[:-1]:
                node = node[part]
            node[path[-1]] = value
            try:
                parsed = parse_experiment_config(changed, seed=1)
            except ConfigError as error:
                refused = str(error)
            else:
                refused = ""
                assert parse_experiment_config(parsed.to_wire(), seed=2) == parsed, (path, value)
            # Pydantic's own words would mean that the schema lets something through that the models refuse.
            assert "Input should" not in refused, (path, value, refused)


def test_importing_the_package_does_not_load_the_yaml_parser() -> None:
    code = "import sys, workflows.config; print([m for m in sys.modules if 'ruamel' in m or 'temporal' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
