"""A whole config, from text to the finished model and back. Source: spec experiment-config.md."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows.config import (
    AdaptiveAshaSearcher,
    ClusterDefaults,
    ConfigError,
    ConstHp,
    ExperimentConfig,
    IntHp,
    Length,
    OptunaSearcher,
    PbtSearcher,
    SharedFSStorage,
    SingleSearcher,
    apply_overrides,
    parse_experiment_config,
)

FULL = """
name: mnist
description: a test
labels: [a, b, a]
data: {url: here, secrets: {token: null}}
workspace: w
project: p
entrypoint: python3 train.py
hyperparameters:
  lr: {type: log, base: 10, minval: -4, maxval: -1}
  layers: {type: int, minval: 1, maxval: 5, count: 2}
  net: {width: {type: categorical, vals: [null, 64, {a: 1}]}, extra: {}, flag: null}
  batch: 64
  sizes: [1, 2]
searcher: {name: adaptive_asha, metric: loss, max_trials: 16, max_time: 100, time_metric: batches, divisor: 2.5}
resources: {slots_per_trial: 2, max_slots: 4, priority: 7, shm_size: 1.5 gb, devices: ["/dev/a:/dev/b", "/c:/d:r"]}
environment:
  image: {gpu: cuda-image, cpu: cpu-image}
  environment_variables: [A=1, B]
  ports: {x: 80}
  proxy_ports: [{proxy_port: 8080}]
  pod_spec: {spec: {priority: null}}
bind_mounts: [{host_path: /data, container_path: data}]
checkpoint_storage: {type: s3, bucket: b, prefix: a//b/./c/, save_trial_best: 3}
min_validation_period: {epochs: 1}
retention_policy: {log_retention_days: -1}
log_policies: [{name: CUDA OOM}, {pattern: x+, action: {type: cancel_retries}}]
integrations: {webhooks: {webhook_id: [1]}}
slurm: {slots_per_node: 4}
profiling: {enabled: true}
"""
SMALL: dict[str, Any] = {
    "entrypoint": "python3 train.py",
    "searcher": {"name": "single", "metric": "loss"},
    "checkpoint_storage": {"type": "shared_fs", "host_path": "/ckpt"},
}


def parse(more: dict[str, Any] | None = None, **keywords: Any) -> ExperimentConfig:
    return parse_experiment_config({**SMALL, **(more or {})}, seed=7, **keywords)


def test_full_config_is_understood() -> None:
    config = parse_experiment_config(FULL, seed=1)
    assert config.labels == ["a", "b"]
    assert isinstance(config.searcher, AdaptiveAshaSearcher)
    assert config.searcher.divisor == 2.5
    assert isinstance(config.hyperparameters["layers"], IntHp)
    assert config.hyperparameters["batch"] == ConstHp(val=64)
    assert config.hyperparameters["sizes"] == ConstHp(val=[1, 2])
    net = config.hyperparameters["net"]
    assert isinstance(net, dict)
    assert net["extra"] == {}
    assert net["flag"] == ConstHp(val=None)
    assert config.resources.shm_size == 1536 * 1024**2
    assert [d.mode for d in config.resources.devices] == ["mrw", "r"]
    assert (config.environment.image.cuda, config.environment.image.cpu) == ("cuda-image", "cpu-image")
    assert config.environment.environment_variables.rocm == ["A=1", "B"]
    assert config.checkpoint_storage.model_dump()["prefix"] == "a/b/c"
    assert config.min_validation_period == Length(unit="epochs", units=1)
    assert config.data == {"url": "here", "secrets": {"token": None}}
    # A bare name disables the built-in policy; the other built-in stays.
    assert [(p.name, p.pattern, p.action) for p in config.log_policies] == [
        ("CUDA OOM", None, None),
        (None, "x+", "cancel_retries"),
        ("ECC Error", ".*uncorrectable ECC error encountered.*", None),
    ]


def test_searchers_of_ours_have_defaults() -> None:
    pbt = {"name": "pbt", "metric": "loss", "population_size": 4, "num_rounds": 3, "length_per_round": {"epochs": 2}}
    found = parse({"searcher": pbt}).searcher
    assert isinstance(found, PbtSearcher)
    assert found.length_per_round == Length(unit="epochs", units=2)
    assert found.replace_function.truncate_fraction == 0.2
    assert found.explore_function.model_dump() == {"resample_probability": 0.2, "perturb_factor": 0.2}
    optuna = {"name": "optuna", "metric": "loss", "max_trials": 9}
    space = {"lr": {"type": "categorical", "vals": [1]}}
    chosen = parse({"searcher": optuna, "hyperparameters": space}).searcher
    assert isinstance(chosen, OptunaSearcher)
    assert (chosen.sampler, chosen.sampler_options, chosen.max_concurrent_trials) == ("tpe", {}, 16)
    assert chosen.max_length is None


def test_defaults_are_those_of_the_spec() -> None:
    wire = parse().to_wire()
    assert wire["name"].startswith("Experiment (")
    assert wire["reproducibility"] == {"experiment_seed": 7}
    expected = {
        "description": None,
        "labels": [],
        "data": {},
        "workspace": "",
        "project": "",
        "hyperparameters": {},
        "bind_mounts": [],
        "checkpoint_policy": "best",
        "min_validation_period": {"batches": 0},
        "min_checkpoint_period": {"batches": 0},
        "perform_initial_validation": False,
        "records_per_epoch": 0,
        "scheduling_unit": 100,
        "max_restarts": 5,
        "preemption_timeout": None,
        "retention_policy": None,
        "integrations": None,
        "debug": False,
        "profiling": {"enabled": False, "begin_on_batch": 0, "end_after_batch": None, "sync_timings": True},
        "resources": {
            "slots_per_trial": 1,
            "max_slots": None,
            "weight": 1,
            "priority": None,
            "resource_pool": "",
            "shm_size": None,
            "devices": [],
            "is_single_node": None,
            "prefer_gpu_topology": None,
            "native_parallel": False,
        },
        "checkpoint_storage": {
            "type": "shared_fs",
            "host_path": "/ckpt",
            "storage_path": None,
            "propagation": "rprivate",
            "save_experiment_best": 0,
            "save_trial_best": 1,
            "save_trial_latest": 1,
        },
    }
    assert {key: wire[key] for key in expected} == expected


def test_wire_has_every_key_that_the_harness_indexes() -> None:
    # container-contract.md, section 2.
    wire = parse().to_wire()
    for path in [
        "entrypoint",
        "checkpoint_storage",
        "resources.slots_per_trial",
        "resources.native_parallel",
        "searcher",
        "min_checkpoint_period",
        "min_validation_period",
        "scheduling_unit",
        "checkpoint_policy",
        "perform_initial_validation",
        "profiling.enabled",
        "profiling.begin_on_batch",
        "reproducibility.experiment_seed",
        "debug",
        "data",
        "records_per_epoch",
    ] + [
        f"optimizations.{key}"
        for key in [
            "aggregation_frequency",
            "average_aggregated_gradients",
            "average_training_metrics",
            "gradient_compression",
            "grad_updates_size_file",
            "mixed_precision",
            "tensor_fusion_threshold",
            "tensor_fusion_cycle_time",
            "auto_tune_tensor_fusion",
        ]
    ]:
        node: Any = wire
        for part in path.split("."):
            assert part in node, path
            node = node[part]


ALLOWED = {
    "shared_fs": "host_path storage_path container_path propagation",
    "directory": "container_path",
    "s3": "bucket access_key secret_key endpoint_url prefix temp_dir",
    "gcs": "bucket prefix temp_dir",
    "azure": "container connection_string account_url credential temp_dir",
}
STORAGES: list[dict[str, Any]] = [
    {"type": "shared_fs", "host_path": "/x", "container_path": "/y", "checkpoint_path": "z", "tensorboard_path": "t"},
    {"type": "directory", "container_path": "/x"},
    {"type": "s3", "bucket": "b", "access_key": "k", "secret_key": "s", "endpoint_url": "http://x"},
    {"type": "gcs", "bucket": "b"},
    {"type": "azure", "container": "c", "account_url": "u", "credential": "s"},
]


@pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s["type"])
def test_storage_carries_only_what_the_containers_class_takes(storage: dict[str, Any]) -> None:
    wire = parse({"checkpoint_storage": storage}).to_wire()["checkpoint_storage"]
    rest = {key for key in wire if key != "type" and not key.startswith("save_")}
    assert rest <= set(ALLOWED[storage["type"]].split())
    assert wire == parse({"checkpoint_storage": wire}).to_wire()["checkpoint_storage"]


@pytest.mark.parametrize("text", [FULL, json.dumps(SMALL)])
def test_wire_parses_to_an_equal_config(text: str) -> None:
    config = parse_experiment_config(text, seed=1)
    wire = json.loads(json.dumps(config.to_wire()))
    again = parse_experiment_config(wire, seed=2)
    assert again == config
    assert again.to_wire() == wire
    assert ExperimentConfig.model_validate(wire) == config
    assert parse_experiment_config(json.dumps(wire), seed=3) == config


NAMES = st.text("abct-.", min_size=1, max_size=4)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=3),
    st.lists(st.integers(-9, 9), max_size=2),
    st.builds(
        lambda a, n, c: {"type": "int", "minval": a, "maxval": a + n, **c},
        st.integers(-5, 5),
        st.integers(1, 9),
        st.sampled_from([{}, {"count": 2}, {"count": None}]),
    ),
    st.builds(lambda v: {"type": "categorical", "vals": v}, st.lists(st.none() | st.integers(-9, 9), min_size=1)),
    st.builds(lambda v: {"type": "const", "val": v}, st.none() | st.integers(-9, 9) | st.just({"type": "x"})),
)
SPACES = st.recursive(
    st.dictionaries(NAMES, LEAVES, max_size=3), lambda s: st.dictionaries(NAMES, s | LEAVES), max_leaves=6
)


@settings(max_examples=60, deadline=None)
@given(space=SPACES, labels=st.lists(NAMES), seed=st.integers(0, 2**32 - 1), slots=st.integers(0, 8))
def test_any_config_survives_the_wire(space: dict[str, Any], labels: list[str], seed: int, slots: int) -> None:
    config = parse_experiment_config(
        {**SMALL, "hyperparameters": space, "labels": labels, "resources": {"slots_per_trial": slots}}, seed=seed
    )
    wire = json.loads(json.dumps(config.to_wire()))
    assert parse_experiment_config(wire, seed=0) == config


def test_name_depends_on_the_seed_alone() -> None:
    names = [parse_experiment_config(SMALL, seed=seed).name for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2]
    assert len(names[0].removeprefix("Experiment (").removesuffix(")").split("-")) == 3


def test_null_means_absent() -> None:
    assert parse({"max_restarts": None, "resources": {"slots_per_trial": None}, "labels": None}) == parse()
    assert parse({"internal": None, "version": 0}) == parse()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"environment": {"image": {"gpu": "x"}}}, {"environment": {"image": {"cuda": "x"}}}),
        ({"environment": {"image": {"gpu": "x", "cuda": "y"}}}, {"environment": {"image": {"cuda": "y"}}}),
        (
            {"environment": {"environment_variables": {"gpu": ["A=1"]}}},
            {"environment": {"environment_variables": {"cuda": ["A=1"]}}},
        ),
        ({"labels": {"a": True, "b": True}}, {"labels": ["a", "b"]}),
        ({"resources": {"agent_label": "x", "native_parallel": False}}, {}),
        ({"data_layer": {"type": "s3"}, "security": {}, "tensorboard_storage": {"type": "s3"}}, {}),
        (
            {"log_policies": [{"pattern": "a", "action": {"type": "exclude_node"}}]},
            {"log_policies": [{"pattern": "a", "action": "exclude_node"}]},
        ),
        ({"max_restarts": 5.0}, {"max_restarts": 5}),
    ],
)
def test_old_spellings(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert parse(old) == parse(new)


def test_lengths_of_both_kinds() -> None:
    for given_length, length in ((7, Length(units=7)), ({"records": 5}, Length(unit="records", units=5))):
        searcher = parse({"searcher": {"name": "single", "metric": "l", "max_length": given_length}}).searcher
        assert isinstance(searcher, SingleSearcher)
        assert searcher.max_length == length
        assert searcher.model_dump(mode="json")["max_length"] == given_length


def test_custom_searcher_keeps_unknown_keys() -> None:
    searcher = {"name": "custom", "metric": "l", "unit": "batches", "mine": {"a": [1]}}
    assert parse({"searcher": searcher}).to_wire()["searcher"] == {**searcher, "smaller_is_better": True}


def test_unmanaged_needs_no_entrypoint() -> None:
    without = {key: value for key, value in SMALL.items() if key != "entrypoint"}
    assert parse_experiment_config(without, seed=1, managed=False).entrypoint is None
    with pytest.raises(ConfigError, match="managed experiments require entrypoint"):
        parse_experiment_config(without, seed=1)


def test_cluster_fills_up_what_is_missing() -> None:
    cluster = ClusterDefaults(
        checkpoint_storage={"type": "shared_fs", "host_path": "/cluster", "save_trial_best": 9},
        resource_pool="gpu",
        aux_resource_pool="cpu",
        priority=42,
        preemption_timeout=60,
        image="cluster-image",
        environment_variables=["A=0", "Z=1"],
        cpu_pod_spec={"spec": {"nodeSelector": {"kind": "cpu"}}},
        gpu_pod_spec={"spec": {"nodeSelector": {"kind": "gpu"}}},
        bind_mounts=[{"host_path": "/a", "container_path": "/x"}, {"host_path": "/b", "container_path": "/y"}],
        log_policies=[{"name": "mine", "pattern": "x"}],
        slurm={"sbatch_args": ["--low"], "slots_per_node": 2},
    )
    config = parse(
        {
            "checkpoint_storage": {"save_trial_best": 2},
            "environment": {"environment_variables": ["A=1"]},
            "bind_mounts": [{"host_path": "/mine", "container_path": "/x"}],
            "slurm": {"sbatch_args": ["--high"]},
        },
        cluster=cluster,
    )
    assert config.checkpoint_storage == SharedFSStorage(type="shared_fs", host_path="/cluster", save_trial_best=2)
    assert (config.resources.resource_pool, config.resources.priority, config.preemption_timeout) == ("gpu", 42, 60)
    assert config.environment.image.rocm == "cluster-image"
    assert config.environment.environment_variables.cpu == ["A=0", "Z=1", "A=1"]
    assert config.environment.pod_spec == {"spec": {"nodeSelector": {"kind": "gpu"}}}
    assert [(m.host_path, m.container_path) for m in config.bind_mounts] == [("/mine", "/x"), ("/b", "/y")]
    assert [p.name for p in config.log_policies] == ["mine", "CUDA OOM", "ECC Error"]
    assert config.slurm.model_dump() == {"slots_per_node": 2, "gpu_type": None, "sbatch_args": ["--low", "--high"]}
    on_cpu = parse({"resources": {"slots_per_trial": 0, "resource_pool": ""}}, cluster=cluster)
    assert on_cpu.resources.resource_pool == "cpu"
    assert on_cpu.environment.pod_spec == {"spec": {"nodeSelector": {"kind": "cpu"}}}


def test_storage_types_do_not_mix() -> None:
    cluster = ClusterDefaults(checkpoint_storage={"type": "s3", "bucket": "b", "save_trial_best": 9})
    config = parse({"checkpoint_storage": {"type": "directory", "container_path": "/x"}}, cluster=cluster)
    assert config.to_wire()["checkpoint_storage"] == {
        "type": "directory",
        "container_path": "/x",
        "save_experiment_best": 0,
        "save_trial_best": 9,
        "save_trial_latest": 1,
    }


def test_input_is_not_changed() -> None:
    given_map = {**SMALL, "environment": {"image": {"gpu": "x"}}, "labels": {"a": True}}
    copy = json.loads(json.dumps(given_map))
    parse_experiment_config(given_map, seed=1)
    assert given_map == copy


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("max_restarts=3", {"max_restarts": 3}),
        (
            "searcher.max_length.batches=10",
            {"searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 10}}},
        ),
        ("labels=[a, b]", {"labels": ["a", "b"]}),
        ("hyperparameters.lr=1e-4", {"hyperparameters": {"lr": 1e-4}}),
        ("name=a=b", {"name": "a=b"}),
        ("debug=no", {"debug": "no"}),
        ("description=", {"description": None}),
        ("entrypoint='5'", {"entrypoint": "5"}),
    ],
)
def test_override(override: str, expected: dict[str, Any]) -> None:
    before = json.dumps(SMALL)
    changed = apply_overrides(SMALL, [override])
    assert changed == {**SMALL, **expected}
    assert json.dumps(SMALL) == before


def test_overrides_reach_into_lists_and_tell_all_that_is_wrong() -> None:
    base = {"bind_mounts": [{"host_path": "/a"}], "name": "x"}
    assert apply_overrides(base, ["bind_mounts.0.host_path=/b"])["bind_mounts"] == [{"host_path": "/b"}]
    with pytest.raises(ConfigError) as error:
        apply_overrides(base, ["bind_mounts.1.host_path=/b", "name.x=1", "oops", "a..b=1", "a=[1"])
    text = str(error.value)
    for part in (
        "is not a position in it",
        "name is a string",
        "'oops' is not of the form",
        "'a..b=1'",
        "expected ','",
    ):
        assert part in text
