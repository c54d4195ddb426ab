"""The orchestrator is killed with SIGKILL at every step of a search, one run a step: the result is always the same.

Real Temporal, real database, real orchestrators, real workflows; only containers are none, so that a run takes a second.
The search is one in which a single order of decisions is possible: rungs, promotions, one trial at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.chaos.lane import Death, Lane, Run, lane
from tests.chaos.mortal import TELLING
from tests.chaos.scale import IS_LONG, chosen
from tests.kit.scripts import config

#: Of its trials one is promoted late, two go on at once, one is stopped while it waits.
SEARCH = config(
    {
        "name": "async_halving",
        "max_trials": 4,
        "num_rungs": 2,
        "divisor": 2,
        "max_length": 2,
        "max_concurrent_trials": 1,
    },
    reproducibility={"experiment_seed": 40},
)
LANES = 6
KINDS = (*TELLING, "decided") if IS_LONG else TELLING
#: Of so many steps one.
EVERY = chosen(6, 1)


@pytest.fixture(scope="module")
async def lanes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[Lane]]:
    """Clusters side by side: most of a run is waiting until a death is noticed."""
    folder = tmp_path_factory.mktemp("lanes")
    async with contextlib.AsyncExitStack() as stack:
        # one after the other, or two of them might choose the same free port
        yield [await stack.enter_async_context(lane(folder / str(number))) for number in range(LANES)]


@pytest.mark.timeout(chosen(600, 3600))
@pytest.mark.parametrize("victim", ["experiment", "trial"])
async def test_result_is_the_same_when_the_orchestrator_is_killed_at_any_step(victim: str, lanes: list[Lane]) -> None:
    began = time.monotonic()
    undisturbed = await lanes[0].run(SEARCH, victim, 0, KINDS)
    assert undisturbed.death is None
    assert undisturbed.result["experiment"] == ("COMPLETED", 1.0, "", True)
    assert set(undisturbed.starts.values()) == {1}
    sweep = _Sweep(victim, lanes[0].last_step().step)
    async with asyncio.TaskGroup() as group:  # which leaves no lane at work for the next test, if one fails
        for each in lanes:
            group.create_task(sweep.work(each, undisturbed))
    print(f"\n{sweep.report(time.monotonic() - began)}")
    assert len(sweep.deaths()) >= 0.9 * sweep.steps / EVERY, "few runs end before their step"


class _Sweep:
    """Hands the steps out to lanes: all that the undisturbed run had, and on until a run ended before its step.

    Args:
        victim: Whose steps.
        steps: How many the undisturbed run had. Others may have one more or less: messages that come together are one.
    """

    def __init__(self, victim: str, steps: int) -> None:
        self.steps = steps
        self._runs: list[Run] = []
        self._victim = victim
        self._is_over = False
        self._next = self._numbers()

    def _numbers(self) -> Iterator[int]:
        step = 1
        while step <= self.steps or not self._is_over:
            yield step
            step += EVERY

    async def work(self, each: Lane, undisturbed: Run) -> None:
        """Take steps and compare the results, until there are no more."""
        for step in self._next:
            run = await each.run(SEARCH, self._victim, step, KINDS)
            where = f"killed at step {step} of the {self._victim}, {run.death}"
            for part, expected in undisturbed.result.items():
                assert run.result[part] == expected, f"{where}: the {part} differ"
            assert run.starts == undisturbed.starts, f"{where}: a container was started twice"
            self._runs.append(run)
            self._is_over |= run.death is None

    def deaths(self) -> list[Death]:
        """Where it was killed."""
        return [run.death for run in self._runs if run.death]

    def report(self, seconds: float) -> str:
        """The figures."""
        kinds = Counter(death.kind for death in self.deaths())
        waits = sorted(run.seconds_after_death for run in self._runs if run.death)
        return (
            f"{self._victim}: {self.steps} steps, killed at {len(self.deaths())} ({dict(kinds)}); after its death the "
            f"search took {statistics.median(waits):.1f} s more (median), {waits[-1]:.1f} s at most; "
            f"{seconds:.0f} s in all"
        )
