"""Merging, rule by rule. Source: spec experiment-config.md §6."""

from typing import Any

import pytest

from workflows.config import merge_configs

CASES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("scalar", {"max_restarts": 1}, {"max_restarts": 2, "name": "low"}, {"max_restarts": 1, "name": "low"}),
    ("null", {"max_restarts": None}, {"max_restarts": 2}, {"max_restarts": 2}),
    (
        "map",
        {"resources": {"slots_per_trial": 1}},
        {"resources": {"slots_per_trial": 2, "priority": 3}},
        {"resources": {"slots_per_trial": 1, "priority": 3}},
    ),
    ("list", {"labels": ["a"]}, {"labels": ["b"]}, {"labels": ["a"]}),
    ("data", {"data": {"a": {"b": 1}}}, {"data": {"a": {"c": None}}}, {"data": {"a": {"b": 1, "c": None}}}),
    (
        "bind mounts",
        {"bind_mounts": [{"host_path": "/a", "container_path": "/x"}]},
        {"bind_mounts": [{"host_path": "/b", "container_path": "/x"}, {"host_path": "/c", "container_path": "/y"}]},
        {"bind_mounts": [{"host_path": "/a", "container_path": "/x"}, {"host_path": "/c", "container_path": "/y"}]},
    ),
    (
        "devices",
        {"resources": {"devices": ["/a:/x"]}},
        {"resources": {"devices": ["/b:/x", "/b:/y:r"]}},
        {
            "resources": {
                "devices": [
                    {"host_path": "/a", "container_path": "/x", "mode": "mrw"},
                    {"host_path": "/b", "container_path": "/y", "mode": "r"},
                ]
            }
        },
    ),
    (
        "proxy ports",
        {"environment": {"proxy_ports": [{"proxy_port": 1, "proxy_tcp": True}]}},
        {"environment": {"proxy_ports": [{"proxy_port": 1}, {"proxy_port": 2}]}},
        {"environment": {"proxy_ports": [{"proxy_port": 1, "proxy_tcp": True}, {"proxy_port": 2}]}},
    ),
    (
        "environment variables",
        {"environment": {"environment_variables": {"cpu": ["A=1"]}}},
        {"environment": {"environment_variables": ["A=0"]}},
        {"environment": {"environment_variables": {"cpu": ["A=0", "A=1"], "cuda": ["A=0"], "rocm": ["A=0"]}}},
    ),
    (
        "image",
        {"environment": {"image": {"gpu": "x"}}},
        {"environment": {"image": "y"}},
        {"environment": {"image": {"cuda": "x", "cpu": "y", "rocm": "y"}}},
    ),
    (
        "log policies",
        {"log_policies": [{"name": "a"}, {"pattern": "p", "action": "exclude_node"}]},
        {
            "log_policies": [
                {"name": "a", "pattern": "x"},
                {"pattern": "p", "action": {"type": "exclude_node"}},
                {"pattern": "q"},
            ]
        },
        {"log_policies": [{"name": "a"}, {"pattern": "p", "action": "exclude_node"}, {"pattern": "q"}]},
    ),
    (
        "searcher of the same name",
        {"searcher": {"name": "random", "max_trials": 3}},
        {"searcher": {"name": "random", "metric": "m", "max_trials": 5, "max_length": {"epochs": 1}}},
        {"searcher": {"name": "random", "metric": "m", "max_trials": 3, "max_length": {"epochs": 1}}},
    ),
    (
        "searcher of another name",
        {"searcher": {"name": "single"}},
        {"searcher": {"name": "random", "metric": "m", "smaller_is_better": False, "max_trials": 5}},
        {"searcher": {"name": "single", "metric": "m", "smaller_is_better": False}},
    ),
    (
        "searcher without a name",
        {"searcher": {"max_trials": 3}},
        {"searcher": {"name": "random", "max_trials": 5}},
        {"searcher": {"name": "random", "max_trials": 3}},
    ),
    (
        "lengths are atomic",
        {"searcher": {"name": "single", "max_length": {"epochs": 1}}, "min_validation_period": {"epochs": 1}},
        {"searcher": {"name": "single", "max_length": {"batches": 9}}, "min_validation_period": {"batches": 9}},
        {"searcher": {"name": "single", "max_length": {"epochs": 1}}, "min_validation_period": {"epochs": 1}},
    ),
    (
        "storage of another type",
        {"checkpoint_storage": {"type": "gcs"}},
        {"checkpoint_storage": {"type": "s3", "bucket": "b", "save_trial_best": 7}},
        {"checkpoint_storage": {"type": "gcs", "save_trial_best": 7}},
    ),
    (
        "storage without a type",
        {"checkpoint_storage": {"save_trial_best": 1}},
        {"checkpoint_storage": {"type": "s3", "bucket": "b", "save_trial_best": 7}},
        {"checkpoint_storage": {"type": "s3", "bucket": "b", "save_trial_best": 1}},
    ),
    (
        "azure credentials",
        {"checkpoint_storage": {"type": "azure", "account_url": "u"}},
        {"checkpoint_storage": {"type": "azure", "connection_string": "s", "container": "c"}},
        {"checkpoint_storage": {"type": "azure", "account_url": "u", "container": "c"}},
    ),
    (
        "hyperparameters",
        {"hyperparameters": {"a": {"type": "int", "minval": 1, "maxval": 2}, "n": {"x": 1}, "c": 5}},
        {
            "hyperparameters": {
                "a": {"type": "int", "minval": 0, "maxval": 9, "count": 3},
                "n": {"x": 2, "y": {"type": "const", "val": 3}},
                "c": {"d": 1},
                "low": None,
            }
        },
        {
            "hyperparameters": {
                "a": {"type": "int", "minval": 1, "maxval": 2},
                "n": {"x": {"type": "const", "val": 1}, "y": {"type": "const", "val": 3}},
                "c": {"type": "const", "val": 5},
                "low": {"type": "const", "val": None},
            }
        },
    ),
    (
        "pod spec",
        {"environment": {"pod_spec": {"spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}]}}}},
        {
            "environment": {
                "pod_spec": {
                    "metadata": {"labels": {"l": "1"}},
                    "spec": {
                        "containers": [
                            {"name": "b"},
                            {"name": "a", "env": [{"name": "X", "value": "0"}, {"name": "Y"}]},
                        ],
                        "tolerations": [{"key": "k"}],
                    },
                }
            }
        },
        {
            "environment": {
                "pod_spec": {
                    "metadata": {"labels": {"l": "1"}},
                    "spec": {
                        "containers": [
                            {"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y"}]},
                            {"name": "b"},
                        ],
                        "tolerations": [{"key": "k"}],
                    },
                }
            }
        },
    ),
    (
        "batch arguments",
        {"slurm": {"sbatch_args": ["-b"]}},
        {"slurm": {"sbatch_args": ["-a"]}},
        {"slurm": {"sbatch_args": ["-a", "-b"]}},
    ),
    ("entrypoint", {"entrypoint": ["a"]}, {"entrypoint": "b"}, {"entrypoint": ["a"]}),
]


@pytest.mark.parametrize(("higher", "lower", "merged"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_rule(higher: dict[str, Any], lower: dict[str, Any], merged: dict[str, Any]) -> None:
    assert merge_configs(higher, lower) == merged


@pytest.mark.parametrize(("higher", "lower", "merged"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_merging_with_nothing_changes_nothing(higher: dict[str, Any], lower: dict[str, Any], merged: dict) -> None:
    assert merge_configs(merged, {}) == merged == merge_configs({}, merged)


@pytest.mark.parametrize("wrong", [5, "x", ["y"], {"z": 1}, None])
def test_wrong_types_do_not_break_merging(wrong: Any) -> None:
    for _, higher, lower, _ in CASES:
        for one, other in ((higher, lower), (lower, higher)):
            merge_configs(one, dict.fromkeys(other, wrong))
            merge_configs(dict.fromkeys(one, wrong), other)
