"""The generator and everything drawn from it. Vectors: spec searchers.md §11."""

import pytest
from search_bench import Bench, config

from workflows.config import IntHp
from workflows.searchers import MT19937
from workflows.searchers.space import axis_value, grid_axes, grid_point, sample

SPACE = {
    "drop": {"type": "double", "minval": 0.1, "maxval": 0.5},
    "k": {"type": "const", "val": 7},
    "lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
    "opt": {"type": "categorical", "vals": ["sgd", "adam", "rmsprop"]},
    "units": {"type": "int", "minval": 16, "maxval": 256},
}
VECTORS = [
    (42, 1, 0.249816047538945, 0.07114476009343416, "rmsprop", 87, "bcae4199-142c-4b98-a6d6-f02779182272", 669991378),
    (42, 2, 0.13998996632720118, 0.0023864188780056057, "sgd", 115, "67eb9224-973e-44b5-82a0-a0a695064505", 242285876),
    (42, 3, 0.4879639408647978, 0.031428808908401065, "adam", 145, "bf148c2e-bb93-41fe-9499-f32ea044139e", 1306710475),
    (0, 1, 0.3195254015709299, 0.013981961408994043, "adam", 227, "155159a5-f2d6-4662-a4b7-0570573a2b4c", 1682652230),
    (777, 1, 0.16106549396052883, 0.0008073648339837064, "adam", 87, "9dd6803f-7f2a-43d5-b470-4390a7ad4fed", 479740889),
]


def test_generator_gives_the_peers_numbers() -> None:
    rng = MT19937.seeded(42)
    assert [rng.below(10) for _ in range(10)] == [6, 3, 7, 4, 6, 9, 2, 6, 7, 4]


def test_generator_gives_the_reference_output_of_mt19937() -> None:
    # The C++ standard fixes the 10000th value of mt19937 with its default seed 5489.
    rng = MT19937.seeded(5489)
    for _ in range(9999):
        rng.uint32()
    assert rng.uint32() == 4123659995


def test_generator_goes_on_where_it_was_when_restored_in_the_middle_of_a_block() -> None:
    rng = MT19937.seeded(7)
    for _ in range(1000):
        rng.uint32()
    other = MT19937.model_validate_json(rng.model_dump_json())
    assert [other.uint32() for _ in range(700)] == [rng.uint32() for _ in range(700)]


def test_below_draws_nothing_when_there_is_one_choice() -> None:
    rng = MT19937.seeded(1)
    assert rng.below(1) == 0
    assert rng.position == 624


def test_below_covers_ranges_wider_than_a_word() -> None:
    rng = MT19937.seeded(1)
    drawn = [rng.below(2**63) for _ in range(50)]
    assert max(drawn) > 2**60
    assert all(0 <= d < 2**63 for d in drawn)


@pytest.mark.parametrize(("seed", "number", "drop", "lr", "opt", "units", "request_id", "trial_seed"), VECTORS)
def test_trials_are_the_peers(
    seed: int, number: int, drop: float, lr: float, opt: str, units: int, request_id: str, trial_seed: int
) -> None:
    bench = Bench({"name": "random", "max_trials": 3, "max_concurrent_trials": 3}, SPACE, seed)
    bench.start()
    hparams = bench.hparams[number - 1]
    assert hparams["drop"] == pytest.approx(drop, rel=1e-12)
    assert hparams["lr"] == pytest.approx(lr, rel=1e-12)
    assert (hparams["k"], hparams["opt"], hparams["units"]) == (7, opt, units)
    assert bench.ids[number - 1] == request_id
    create = [a for a in _creates(seed) if a.request_id == request_id]
    assert create[0].trial_seed == trial_seed


def _creates(seed: int):
    from workflows.searchers import Search, Started

    search = Search.new(config({"name": "random", "max_trials": 3}, SPACE, seed))
    return search.handle(Started())


def test_draws_do_not_depend_on_the_order_of_the_text() -> None:
    turned = dict(reversed(SPACE.items()))
    nested = {"a": {"z": SPACE["drop"], "b": SPACE["units"]}}
    nested_turned = {"a": dict(reversed(nested["a"].items()))}
    for one, other in ((SPACE, turned), (nested, nested_turned)):
        left = sample(config({"name": "single"}, one).hyperparameters, MT19937.seeded(3))
        right = sample(config({"name": "single"}, other).hyperparameters, MT19937.seeded(3))
        assert left == right


def test_nested_and_empty_maps_keep_their_shape() -> None:
    space = {"net": {"empty": {}, "n": {"type": "int", "minval": 3, "maxval": 4}, "list": [1, {"a": 2}], "none": None}}
    drawn = sample(config({"name": "single"}, space).hyperparameters, MT19937.seeded(3))
    assert drawn["net"].pop("n") in (3, 4)
    assert drawn == {"net": {"empty": {}, "list": [1, {"a": 2}], "none": None}}


def grid(space: dict) -> list[dict]:
    hyperparameters = config({"name": "grid"}, space).hyperparameters
    axes = grid_axes(hyperparameters)
    from workflows.config import grid_size

    return [grid_point(axes, index) for index in range(grid_size(hyperparameters))]


def test_grid_counts_off_the_last_axis_first() -> None:
    space = {
        "a": {"type": "int", "minval": 0, "maxval": 20, "count": 3},
        "b": {"type": "int", "minval": 0, "maxval": 10, "count": 3},
    }
    points = [(p["a"], p["b"]) for p in grid(space)]
    assert points == [(0, 0), (0, 5), (0, 10), (10, 0), (10, 5), (10, 10), (20, 0), (20, 5), (20, 10)]


def test_grid_keeps_an_empty_map_as_a_constant() -> None:
    space = {"x": {"empty": {}, "full": {"type": "categorical", "vals": [1, 2, 3]}}}
    assert [path for path, _ in grid_axes(config({"name": "grid"}, space).hyperparameters)] == [
        ("x", "empty"),
        ("x", "full"),
    ]
    assert grid(space) == [{"x": {"empty": {}, "full": n}} for n in (1, 2, 3)]


def test_grid_of_doubles_has_as_many_points_as_counts_multiply_to() -> None:
    space = {
        str(i): {"type": "double", "minval": -1, "maxval": 1, "count": count}
        for i, count in enumerate((2, 2, 3, 3, 4, 5))
    }
    points = grid(space)
    assert len(points) == 720
    assert len({tuple(p.values()) for p in points}) == 720


@pytest.mark.parametrize(
    ("leaf", "values"),
    [
        ({"type": "int", "minval": -4, "maxval": -2, "count": 3}, [-4, -3, -2]),
        ({"type": "int", "minval": -4, "maxval": -2, "count": 99}, [-4, -3, -2]),
        ({"type": "int", "minval": -3, "maxval": 0, "count": 1}, [-2]),
        ({"type": "int", "minval": 0, "maxval": 3, "count": 1}, [2]),
        ({"type": "int", "minval": 0, "maxval": 5, "count": 3}, [0, 3, 5]),
        ({"type": "log", "base": 10, "minval": 1, "maxval": 2, "count": 2}, [10, 100]),
        ({"type": "log", "base": 10, "minval": 1, "maxval": 3, "count": 1}, [100]),
        ({"type": "double", "minval": -1, "maxval": 1, "count": 1}, [0]),
        ({"type": "double", "minval": 0, "maxval": 1, "count": 5}, [0, 0.25, 0.5, 0.75, 1]),
        ({"type": "categorical", "vals": [None, {"a": 1}, [2]]}, [None, {"a": 1}, [2]]),
        ([1, 2], [[1, 2]]),
    ],
)
def test_grid_axis(leaf: object, values: list) -> None:
    points = [p["x"] for p in grid({"x": leaf})]
    assert points == pytest.approx(values) if isinstance(values[0], float) else points == values


def test_grid_axis_of_huge_integers_is_exact() -> None:
    leaf = IntHp(minval=0, maxval=2**62, count=3)
    assert [axis_value(leaf, i) for i in range(3)] == [0, 2**61, 2**62]
