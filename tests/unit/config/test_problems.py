"""What users are told. Source of the messages: spec experiment-config.md §1 to §17."""

import time
from typing import Any

import pytest

from workflows.config import ConfigError, Problem, Stage, parse_experiment_config

PREFIX = "invalid experiment configuration: version 0 experiment config is invalid: config is invalid: "
INCOMPLETE = (
    "invalid experiment configuration: version 0 experiment config is invalid: config is invalid or incomplete: "
)
GOOD: dict[str, Any] = {
    "entrypoint": "x",
    "searcher": {"name": "single", "metric": "loss"},
    "checkpoint_storage": {"type": "shared_fs", "host_path": "/ckpt"},
}


def error_of(config: Any, *, alone: bool = False) -> ConfigError:
    if isinstance(config, dict) and not alone:
        config = {**GOOD, **config}
    with pytest.raises(ConfigError) as error:
        parse_experiment_config(config, seed=1)
    return error.value


def lines(config: Any, *, alone: bool = False) -> list[str]:
    text = str(error_of(config, alone=alone))
    return text.removeprefix(PREFIX).removeprefix(INCOMPLETE).split("\n")


def searcher(**fields: Any) -> dict[str, Any]:
    return {"searcher": {"metric": "loss", **fields}}


def pbt(**fields: Any) -> dict[str, Any]:
    return searcher(name="pbt", **{"population_size": 4, "num_rounds": 3, "length_per_round": 5, **fields})


def optuna(**fields: Any) -> dict[str, Any]:
    space = {"lr": {"type": "double", "minval": 0, "maxval": 1}}
    return {**searcher(name="optuna", **{"max_trials": 4, **fields}), "hyperparameters": space}


def storage(**fields: Any) -> dict[str, Any]:
    return {"checkpoint_storage": fields}


OBSERVED = [
    ({"max_restarts": -1}, "<config>.max_restarts: must be >= 0 but found -1"),
    ({"max_restarts": "x"}, "<config>.max_restarts: expected integer or null, but got string"),
    ({"max_restarts": 1.5}, "<config>.max_restarts: expected integer or null, but got number"),
    ({"max_restarts": True}, "<config>.max_restarts: expected integer or null, but got boolean"),
    ({"foo": 1}, '<config>: additionalProperties "foo" not allowed'),
    (
        {"checkpoint_policy": "sometimes"},
        '<config>.checkpoint_policy: value must be one of <nil>, "best", "all", "none"',
    ),
    ({"min_validation_period": 5}, "<config>.min_validation_period: expected object or null, but got number"),
    ({"entrypoint": 5}, "<config>.entrypoint: expected string or array or null, but got number"),
    ({"labels": [1]}, "<config>.labels[0]: expected string, but got number"),
    (searcher(name="random", max_trials=0), "<config>.searcher.max_trials: must be >= 1 but found 0"),
    (
        searcher(name="adaptive_asha", max_trials=1, max_length=1, divisor=1),
        "<config>.searcher.divisor: must be > 1 but found 1",
    ),
    (searcher(name="single", foo=1), '<config>.searcher: additionalProperties "foo" not allowed'),
    (
        searcher(name="single", max_length={"batches": 0}),
        "<config>.searcher.max_length.batches: must be >= 1 but found 0",
    ),
    (searcher(name="single", max_length=-3), "<config>.searcher.max_length: must be >= 0 but found -3"),
    (
        {"hyperparameters": {"a": {"type": "int", "minval": 1}}},
        '<config>.hyperparameters.a: missing properties: "maxval"',
    ),
    (
        {"hyperparameters": {"a": {"type": "log", "base": 0, "minval": 1, "maxval": 2}}},
        "<config>.hyperparameters.a.base: must be > 0 but found 0",
    ),
    (
        {"environment": {"image": 5}},
        "<config>.environment.image: expected object or string or null, but got number",
    ),
    (
        {"environment": {"environment_variables": {"cpu": "x"}}},
        "<config>.environment.environment_variables: is neither a list of strings nor a map of cpu, cuda, or rocm to"
        " lists of strings",
    ),
    (
        storage(type="ftp"),
        "<config>.checkpoint_storage: is not an object where object[\"type\"] is one of 'shared_fs', 'directory', 's3',"
        " 'gcs', or 'azure'",
    ),
    ({"resources": {"slot": 1}}, '<config>.resources: additionalProperties "slot" not allowed'),
    (
        searcher(name="nonsense"),
        "<config>.searcher: is not an object where object[\"name\"] is one of 'single', 'random', 'grid', 'custom', or"
        " 'adaptive_asha'",
    ),
    ({"min_checkpoint_period": {"batches": -1}}, "<config>.min_checkpoint_period.batches: must be >= 0 but found -1"),
]
OTHERS = [
    (
        {"min_checkpoint_period": {"batches": 1, "epochs": 1}},
        '<config>.min_checkpoint_period: a length object must have one attribute named "batches", "records", or'
        ' "epochs"',
    ),
    ({"workspace": "w"}, "<config>: workspace and project must both be included in config if one is provided"),
    ({"entrypoint": None}, "<config>: managed experiments require entrypoint"),
    ({"entrypoint": []}, "<config>.entrypoint: must not be empty"),
    (
        {"hyperparameters": {"a": {"type": "integer"}}},
        '<config>.hyperparameters.a: if a hyperparameter object\'s ["type"] is set, it must be one of "int",'
        ' "double", "log", const", or "categorical" (did you mean "int"?)',
    ),
    (
        {"hyperparameters": {"a": {"b": {"type": "int", "minval": 3, "maxval": 3}}}},
        "<config>.hyperparameters.a.b: minval must be less than maxval",
    ),
    (
        {"hyperparameters": {"a": {"type": "categorical", "vals": []}}},
        "<config>.hyperparameters.a.vals: must not be empty",
    ),
    ({"hyperparameters": {"a": {"type": "const"}}}, '<config>.hyperparameters.a: missing properties: "val"'),
    (
        {"hyperparameters": {"a": {"type": "log", "base": 10, "minval": 1, "maxval": 400}}},
        "<config>.hyperparameters.a: base to the power of minval or maxval is too large for a floating-point number"
        " (minval and maxval are exponents, not values)",
    ),
    (
        {**searcher(name="grid"), "hyperparameters": {"a": [{"type": "int", "minval": 0, "maxval": 3}]}},
        "<config>.hyperparameters.a[0]: grid search is in use but count was not provided",
    ),
    (
        {**searcher(name="grid"), "hyperparameters": {"a": {"b": {"type": "double", "minval": 0, "maxval": 3}}}},
        "<config>.hyperparameters.a.b: grid search is in use but count was not provided",
    ),
    (searcher(name="grid"), "<config>.hyperparameters: a grid search needs at least one hyperparameter"),
    (
        {
            **searcher(name="grid"),
            "hyperparameters": {str(i): {"type": "double", "minval": 0, "maxval": 1, "count": 10**9} for i in range(3)},
        },
        f"<config>.hyperparameters: the grid has {10**27} points, at most 100000 are allowed"
        " (lower a count, or use searcher random)",
    ),
    (
        searcher(name="adaptive_simple"),
        "<config>.searcher: the 'adaptive_simple' searcher has been removed and is not valid for new experiments"
        " (use adaptive_asha)",
    ),
    (
        searcher(name="adaptive_asha", max_trials=4),
        "<config>.searcher: the `adaptive_asha` searcher requires `max_time` and `time_metric` to be set"
        " (max_length is understood as well, for older code)",
    ),
    (
        searcher(name="adaptive_asha", max_trials=4, max_length=5, max_time=3),
        "<config>.searcher: the `adaptive_asha` searcher requires `max_time` and `time_metric` to be set",
    ),
    (
        searcher(name="random", max_trials=10**9, max_concurrent_trials=0),
        "<config>.searcher.max_concurrent_trials: 1000000000 trials would start at once, at most 100000 can",
    ),
    (
        searcher(name="async_halving", max_trials=4, max_length=5, num_rungs=10**9),
        "<config>.searcher.num_rungs: must be <= 1000 but found 1000000000",
    ),
    (pbt(population_size=1), "<config>.searcher.population_size: must be >= 2 but found 1"),
    (
        pbt(population_size=10**9),
        "<config>.searcher.population_size: 1000000000 trials would start at once, at most 100000 can",
    ),
    (pbt(num_rounds=0), "<config>.searcher.num_rounds: must be >= 1 but found 0"),
    (pbt(num_rounds=1001), "<config>.searcher.num_rounds: must be <= 1000 but found 1001"),
    (pbt(length_per_round=None), "<config>.searcher: length_per_round is a required property"),
    (pbt(length_per_round=0), "<config>.searcher.length_per_round: must be >= 1 but found 0"),
    (pbt(length_per_round={"epochs": 0}), "<config>.searcher.length_per_round.epochs: must be >= 1 but found 0"),
    (pbt(length_per_round="5"), "<config>.searcher.length_per_round: a length object must have one attribute named"),
    (
        pbt(length_per_round={"batches": 2**62}),
        f"<config>.searcher.length_per_round: times num_rounds is {3 * 2**62}, at most {2**63 - 1} can be trained",
    ),
    (
        pbt(replace_function={"truncate_fraction": 0.6}),
        "<config>.searcher.replace_function.truncate_fraction: must be <= 0.5 but found 0.6",
    ),
    (
        pbt(replace_function={"truncate_fraction": 0}),
        "<config>.searcher.replace_function.truncate_fraction: must be > 0 but found 0",
    ),
    (
        pbt(explore_function={"resample_probability": -0.1}),
        "<config>.searcher.explore_function.resample_probability: must be >= 0 but found -0.1",
    ),
    (
        pbt(explore_function={"perturb_factor": 1}),
        "<config>.searcher.explore_function.perturb_factor: must be < 1 but found 1",
    ),
    (
        pbt(explore_function={"perturb_faktor": 0.1}),
        '<config>.searcher.explore_function: additionalProperties "perturb_faktor" not allowed'
        ' (did you mean "perturb_factor"?)',
    ),
    (pbt(replace_function="none"), "<config>.searcher.replace_function: expected object or null, but got string"),
    (optuna(max_trials=0), "<config>.searcher.max_trials: must be >= 1 but found 0"),
    (
        optuna(sampler="bayes"),
        '<config>.searcher.sampler: value must be one of <nil>, "tpe", "cmaes", "gp", "nsgaii", "qmc", "random"',
    ),
    (optuna(sampler_options=3), "<config>.searcher.sampler_options: expected object or null, but got number"),
    (
        optuna(sampler_options={"seed": 3}),
        "<config>.searcher.sampler_options: the sampler's seed comes from the experiment's"
        " (set reproducibility.experiment_seed)",
    ),
    (
        {**optuna(), "hyperparameters": {"a": 1, "b": {"c": {"type": "const", "val": {"type": "int"}}}}},
        "<config>.hyperparameters: the optuna searcher needs at least one hyperparameter that is not a constant",
    ),
    (
        optuna(max_trials=10**9, max_concurrent_trials=0),
        "<config>.searcher.max_concurrent_trials: 1000000000 trials would start at once, at most 100000 can",
    ),
    (searcher(name="custom", unit="steps"), '<config>.searcher.unit: value must be one of <nil>, "batches", "records"'),
    (
        {"resources": {"slots_per_trial": 4, "max_slots": 2}},
        "<config>.resources.slots_per_trial: must not be more than max_slots, which is 2",
    ),
    ({"resources": {"priority": 100}}, "<config>.resources.priority: must be <= 99 but found 100"),
    (
        {"resources": {"devices": ["/a"]}},
        "<config>.resources.devices[0]: must be of the form /host:/container or /host:/container:rwm",
    ),
    (
        {"bind_mounts": [{"host_path": "a", "container_path": "b"}]},
        "<config>.bind_mounts[0].host_path: host_path must be an absolute path",
    ),
    (
        {"bind_mounts": [{"host_path": "/a", "container_path": "."}]},
        '<config>.bind_mounts[0].container_path: container_path must not be "."',
    ),
    ({"bind_mounts": [{"host_path": "/a"}]}, '<config>.bind_mounts[0]: missing properties: "container_path"'),
    (
        storage(type="shared_fs", host_path="/a", storage_path="../b"),
        "<config>.checkpoint_storage.storage_path: storage_path must either be a relative directory or a subdirectory"
        " of host_path",
    ),
    (
        storage(type="shared_fs", host_path="/a", storage_path="/ab"),
        "<config>.checkpoint_storage.storage_path: storage_path must either be a relative directory or a subdirectory"
        " of host_path",
    ),
    (
        storage(type="shared_fs", host_path="a"),
        "<config>.checkpoint_storage.host_path: host_path must be an absolute path",
    ),
    (
        storage(type="directory", container_path="a"),
        "<config>.checkpoint_storage.container_path: container_path must be an absolute path",
    ),
    (storage(type="s3", bucket="b", prefix="a/../b"), "<config>.checkpoint_storage.prefix: prefix cannot contain /../"),
    (
        storage(type="azure", container="c"),
        "<config>.checkpoint_storage: Exactly one of connection_string or account_url must be set",
    ),
    (
        storage(type="azure", container="c", connection_string="s", credential="x"),
        "<config>.checkpoint_storage: credential and connection_string must not both be set",
    ),
    (
        storage(type="gcs", bucket="b", save_trial_best=-1),
        "<config>.checkpoint_storage.save_trial_best: must be >= 0 but found -1",
    ),
    (
        storage(type="gcs", bucket="b", host_path="/x"),
        '<config>.checkpoint_storage: additionalProperties "host_path" not allowed (only for shared_fs)',
    ),
    (
        {"log_policies": [{"action": "cancel_retries"}]},
        '<config>.log_policies[0]: "name" must be set, and "pattern" is also required unless you intend to disable an'
        " existing policy",
    ),
    (
        {"log_policies": [{"name": "x", "pattern": "a"}, {"name": "x", "pattern": "b"}]},
        '<config>.log_policies: log_policies have duplicated names "x"',
    ),
    (
        {"log_policies": [{"name": "x", "pattern": "fine"}, {"name": "y", "pattern": "a(?=b)"}]},
        "<config>.log_policies[1].pattern: 'a(?=b)' is not a regular expression of RE2: invalid perl operator: (?="
        " (it has no look-around and no back references)",
    ),
    (
        {"log_policies": [{"name": name, "pattern": name + r"\pL{100}"} for name in "abcd"]},
        "<config>.log_policies: all patterns together: needs more than 8 MiB of memory: repeat less, or list less",
    ),
    (
        {"profiling": {"begin_on_batch": 5, "end_after_batch": 2}},
        "<config>.profiling: begin_on_batch must be less than end_after_batch",
    ),
    (
        {"reproducibility": {"experiment_seed": 2**32}},
        "<config>.reproducibility.experiment_seed: must be <= 4294967295 but found 4294967296",
    ),
    (
        {"retention_policy": {"log_retention_days": -2}},
        "<config>.retention_policy.log_retention_days: must be >= -1 but found -2",
    ),
    ({"budget": {"soft": 0.5}}, "<config>.budget: must limit one or more of slot_hours, price, wall_time and trials"),
    ({"budget": {"slot_hours": 0}}, "<config>.budget.slot_hours: must be > 0 but found 0"),
    (
        {"failure_policies": [{"failure": "hunger", "multiply": {"n": 2}}], "hyperparameters": {"n": 2}},
        '<config>.failure_policies[0].failure: value must be one of "out_of_memory", "crash", "hang", "bad_gpu"',
    ),
    (
        {"failure_policies": [{"failure": "hang"}]},
        "<config>.failure_policies[0]: a hang needs silent_for: how long a trial may report and write nothing, such as"
        " 30m",
    ),
    (
        {"failure_policies": [{"failure": "hang", "silent_for": "3s"}]},
        "<config>.failure_policies[0].silent_for: must be a duration of 10s to 30d, such as 30m",
    ),
    (
        {"failure_policies": [{"failure": "hang", "silent_for": "a while"}]},
        "<config>.failure_policies[0].silent_for: must be a duration of 10s to 30d, such as 30m",
    ),
    (
        {"failure_policies": [{"failure": "bad_gpu", "silent_for": "30m"}]},
        "<config>.failure_policies[0].silent_for: only a hang has silent_for",
    ),
    (
        {"failure_policies": [{"failure": "crash", "resources": {}}]},
        "<config>.failure_policies[0].resources: must name resource_pool, slots_per_trial, or both",
    ),
    (
        {"failure_policies": [{"failure": "crash", "resources": {"slots_per_trial": 0}}]},
        "<config>.failure_policies[0].resources.slots_per_trial: must be >= 1 but found 0",
    ),
    (
        {
            "failure_policies": [{"failure": "crash", "resources": {"slots_per_trial": 4}}],
            "resources": {"max_slots": 2},
        },
        "<config>.failure_policies[0].resources.slots_per_trial: must not be more than max_slots, which is 2",
    ),
    (
        {"failure_policies": [{"failure": "crash", "multiply": {}}]},
        "<config>.failure_policies[0].multiply: must name 1 to 20 hyperparameters",
    ),
    (
        {"failure_policies": [{"failure": "crash", "multiply": {"nothing": 0.5}}]},
        "<config>.failure_policies[0].multiply.nothing: must be the name of a hyperparameter that is a number",
    ),
    (
        {"failure_policies": [{"failure": "crash", "multiply": {"n": 0}}], "hyperparameters": {"n": 2}},
        "<config>.failure_policies[0].multiply.n: must be a factor of 0.001 to 1000",
    ),
    ({"budget": {"trials": 0}}, "<config>.budget.trials: must be >= 1 but found 0"),
    (
        {"budget": {"wall_time": "12 hours"}},
        "<config>.budget.wall_time: must be a duration of 1s to 3650d, such as 12h or 1h30m",
    ),
    (
        {"budget": {"wall_time": "9999d"}},
        "<config>.budget.wall_time: must be a duration of 1s to 3650d, such as 12h or 1h30m",
    ),
    (
        {"approve_before": [{"what": "promotion"}]},
        "<config>.approve_before[0]: a promotion needs the rung that it leads to, from 1",
    ),
    (
        {"approve_before": [{"what": "delete", "rung": 1}]},
        "<config>.approve_before[0].rung: only a promotion has a rung",
    ),
    (
        {"approve_before": [{"what": "budget_overrun"}]},
        "<config>.approve_before[0].what: budget_overrun needs a budget",
    ),
    ({"approve_before": [{"what": "delete"}] * 2}, "<config>.approve_before[1]: it is in the list already"),
    (
        {"approve_before": [{"what": "delete", "deadline": "soon"}]},
        "<config>.approve_before[0].deadline: must be a duration of 1s to 3650d, such as 12h or 1h30m",
    ),
    (
        {"budget": {"slot_hour": 3}},
        '<config>.budget: additionalProperties "slot_hour" not allowed (did you mean "slot_hours"?)',
    ),
    (
        {"optimizations": {"mixed_precision": "o1"}},
        '<config>.optimizations.mixed_precision: value must be one of <nil>, "O0", "O1", "O2", "O3"'
        ' (did you mean "O1"?)',
    ),
    ({"internal": {}}, "<config>.internal: expected null, but got object"),
    (
        {"environment": {"pod_spec": {"spec": {"containers": [{"name": "determined-container", "image": "x"}]}}}},
        "<config>.environment.pod_spec.spec.containers[0].image: image is not configurable",
    ),
    (
        {"integrations": {"pachyderm": {"pachd": {"host": "h", "port": 1}}}},
        '<config>.integrations.pachyderm: missing properties: "proxy", "dataset"',
    ),
    (
        {"tensorboard_storage": {"type": "s3", "save_trial_best": 1}},
        "<config>.tensorboard_storage.save_trial_best: expected null, but got number",
    ),
]


@pytest.mark.parametrize(("config", "message"), OBSERVED + OTHERS)
def test_message(config: dict[str, Any], message: str) -> None:
    found = lines(config)
    assert len(found) == 1, found
    if message.endswith((" named", '"records"')):  # too long a sentence to repeat it each time
        assert found[0].startswith(message)
    else:
        assert found[0] == message or (found[0].startswith(message + " (") and found[0].endswith(")"))


@pytest.mark.parametrize(
    ("config", "hint"),
    [
        ({"max_restart": 1}, 'did you mean "max_restarts"?'),
        ({"Max-Restarts": 1}, 'did you mean "max_restarts"?'),
        ({"slots_per_trial": 1}, 'did you mean "resources.slots_per_trial"?'),
        (searcher(name="adaptive_ahsa"), 'did you mean "adaptive_asha"?'),
        (searcher(name="random", max_trials=1, divisor=3), "only for adaptive_asha, async_halving"),
        (searcher(name="nonsense"), "also known: async_halving, optuna, pbt"),
        (searcher(name="optunna", max_trials=1), 'did you mean "optuna"?'),
        (optuna(sampler="cmaess"), 'did you mean "cmaes"?'),
        (optuna(sampler_option={}), 'did you mean "sampler_options"?'),
        (pbt(max_trials=3), "only for adaptive_asha, async_halving, optuna, random"),
        (pbt(max_length=3), "only for adaptive_asha, async_halving, grid, optuna, random, single"),
        (searcher(name="single", population_size=3), "only for pbt"),
        (pbt(truncate_fraction=0.1), 'did you mean "replace_function"?'),
        ({"checkpoint_policy": "bset"}, 'did you mean "best"?'),
        ({"debug": "yes"}, "'yes' is text here, write true"),
        ({"max_restarts": "1_000"}, "'1_000' is text here, write 1000 without quotes"),
        (searcher(name="single", max_length={"epoch": 1}), 'did you mean "epochs"?'),
        (storage(type="sharedfs"), 'did you mean "shared_fs"?'),
    ],
)
def test_hint(config: dict[str, Any], hint: str) -> None:
    problems = error_of(config).problems
    assert [p.hint for p in problems] == [hint]
    assert str(problems[0]).endswith(f"({hint})")


@pytest.mark.parametrize("size", ["1g", "1 G", "1.5 gb", "512MiB", "3 k", "7b", "42", "0"])
def test_memory_size_is_accepted(size: str) -> None:
    config = parse_experiment_config({**GOOD, "resources": {"shm_size": size}}, seed=1)
    assert config.resources.shm_size is not None


@pytest.mark.parametrize("size", ["1 gi", "1.gb", "1 i", "giga", "", "1  g", "-1", "1e3", "1 g "])
def test_memory_size_is_refused(size: str) -> None:
    assert lines({"resources": {"shm_size": size}}) == ["<config>.resources.shm_size: must be a valid memory size"]


def test_memory_sizes_are_powers_of_1024() -> None:
    for size, count in (("1k", 1024), ("1.5 gb", 3 * 2**29), ("2TiB", 2**41), ("1p", 2**50), ("7b", 7), (9, 9)):
        config = parse_experiment_config({**GOOD, "resources": {"shm_size": size}}, seed=1)
        assert config.resources.shm_size == count


def test_incomplete_config_tells_what_is_missing() -> None:
    error = error_of({"name": "x", "entrypoint": "x"}, alone=True)
    assert error.stage is Stage.COMPLETE
    assert str(error) == (
        f"{INCOMPLETE}<config>: checkpoint_storage is a required property\n<config>: searcher is a required property"
    )
    assert lines({"searcher": {"name": "random"}}) == [
        "<config>.searcher: max_trials is a required property",
        "<config>.searcher: metric is a required property",
    ]


def test_all_problems_are_told_at_once_with_their_lines() -> None:
    text = (
        "name: x\nmax_restart: 3\nresources:\n  slots_per_trial: -1\n  priority: 500\nsearcher:\n  name: grid\n"
        "  metric: loss\nhyperparameters:\n  a: {type: int, minval: 4, maxval: 2}\n  b: {type: int, minval: 1}\n"
        "labels:\n- ok\n- 5\n"
    )
    error = error_of(text)
    assert str(error).startswith(PREFIX)
    assert {(p.path, p.line) for p in error.problems} == {
        ("<config>", 2),
        ("<config>", None),
        ("<config>.resources.slots_per_trial", 4),
        ("<config>.resources.priority", 5),
        ("<config>.hyperparameters.a", 10),
        ("<config>.hyperparameters.b", 11),
        ("<config>.labels[1]", 14),
    }
    assert str(error).split("\n") == sorted(str(error).split("\n"), key=lambda line: line.removeprefix(PREFIX))
    unknown = next(p for p in error.problems if p.line == 2)
    assert (unknown.column, unknown.value, unknown.hint) == (1, 3, 'did you mean "max_restarts"?')
    assert str(unknown).endswith('not allowed (did you mean "max_restarts"?) (line 2)')


def test_problems_are_told_once() -> None:
    problem = Problem("<config>", "x")
    assert ConfigError([problem, problem]).problems == [problem]


def test_version_other_than_zero_is_refused() -> None:
    error = error_of("version: 3\nname: x\n")
    assert str(error) == "invalid experiment configuration: invalid version: 3 (line 1)"


@pytest.mark.parametrize("text", ["- a", "just text", "5"])
def test_a_config_is_a_map(text: str) -> None:
    assert "<config>: expected object, but got" in str(error_of(text))


def test_empty_text_is_an_empty_config() -> None:
    assert "searcher is a required property" in str(error_of(""))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"hyperparameters": {f"a{number}": number for number in range(100_000)}}, "100000 items, the limit is 5000"),
        ({"hyperparameters": {"a": {f"a{n}": {f"b{m}": {"c": 1} for m in range(100)} for n in range(100)}}}, "5000"),
        ({f"zz{number}": 1 for number in range(190_000)}, 'additionalProperties "zz0" not allowed'),
        ({"labels": [f"a{number}" for number in range(190_000)]}, "190000 items, the limit is 10000"),
    ],
    ids=["hyperparameters", "nested ones", "unknown keys", "labels"],
)
def test_config_is_refused_soon_when_it_has_very_many_items(more: dict[str, Any], told: str) -> None:
    """190,000 unknown keys took a minute: each was compared with every known one."""
    config = {"name": "a", "entrypoint": "x", "searcher": {"name": "single", "metric": "loss", "max_length": 1}} | more
    started = time.process_time()
    with pytest.raises(ConfigError) as caught:
        parse_experiment_config(config, seed=1)
    assert time.process_time() - started < 5
    assert told in str(caught.value)
    assert len(caught.value.problems) <= 110
