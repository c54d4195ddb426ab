"""Every documented method of `determined.core`, and what a task knows about itself, in a launched container.

The checks of `core_api/inside` run on each worker of a trial; here is one test for each, which also looks at what the
cluster shows of it to others.
"""

from __future__ import annotations

import contextlib
import enum
import inspect
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import determined as det
from determined import core
from determined.common.api._login import request_token
from determined.common.api._session import Session
from determined.experimental import client
from tests.e2e.core_api.inside import CHECKS
from tests.e2e.core_api.launched import Launched
from tests.e2e.core_api.shown import SHOWN
from tests.kit.embedded import TORCH_PYTHON, Embedded
from tests.kit.patience import PATIENCE
from tests.kit.servers import docker_engine, trial_image

pytestmark = pytest.mark.timeout(900)  # the first test of a launcher runs all of its trials
LAUNCHED = [
    pytest.param((launcher, workers), id=f"{launcher}-{workers}", marks=[pytest.mark.docker] * (launcher == "docker"))
    for launcher in ("process", "docker")
    for workers in (1, 2)
]
PHASES = ("first", "leaving", "resumed")
NAMES = list(dict.fromkeys(check.name for check in CHECKS))


def _drive(cluster: Embedded) -> dict[int, Launched]:
    """One and two workers at once, to their ends."""
    token = request_token(cluster.environment["DET_MASTER"], "admin", cluster.environment["UNDETERRED_ADMIN_PASSWORD"])
    session = Session(cluster.environment["DET_MASTER"], token=token)
    launched = {workers: Launched(cluster, session, workers) for workers in (1, 2)}
    with ThreadPoolExecutor() as pool:
        list(pool.map(Launched.run, launched.values()))
    return launched


@pytest.fixture(scope="module")
def launched_by(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], dict[int, Launched]]]:
    """The trials of a launcher, by their number of workers; all have ended."""
    known: dict[str, dict[int, Launched]] = {}
    broken: set[str] = set()
    with contextlib.ExitStack() as stack:

        def of(launcher: str) -> dict[int, Launched]:
            if launcher in broken:
                pytest.fail(f"the cluster of the launcher {launcher} did not start")
            if launcher not in known:
                broken.add(launcher)
                assert TORCH_PYTHON.exists(), f"{TORCH_PYTHON} is missing: run `make .venv-torch/.installed`"
                if launcher == "docker":
                    stack.enter_context(docker_engine())
                    trial_image()
                # on a busy machine two workers with torch need more than the usual 10 s to leave
                timing = {"invalid_hp_grace_s": 10.0 * PATIENCE}
                given = {"UNDETERRED_TRIAL_PYTHON": str(TORCH_PYTHON), "UNDETERRED_TIMING": json.dumps(timing)}
                cluster = Embedded(tmp_path_factory.mktemp(launcher), launcher=launcher, slots=6, environment=given)
                known[launcher] = _drive(stack.enter_context(cluster.started()))
                broken.remove(launcher)
            return known[launcher]

        yield of


@pytest.fixture
def launched(request: pytest.FixtureRequest, launched_by: Callable[[str], dict[int, Launched]]) -> Launched:
    """One launcher, one number of workers."""
    launcher, workers = request.param
    return launched_by(launcher)[workers]


@pytest.mark.parametrize("launched", LAUNCHED, indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_method(name: str, launched: Launched) -> None:
    facts = launched.facts(name)
    if name in SHOWN:
        SHOWN[name](launched, facts)


@pytest.mark.parametrize("launched", LAUNCHED, indirect=True)
def test_all_checks_ran_and_the_trials_ended_as_they_should(launched: Launched) -> None:
    assert launched.failure is None, launched.failure
    assert [(t["name"], t["rank"]) for t in launched.told if t["failure"]] == []
    ends = [(t["phase"], t["rank"]) for t in launched.told if t["name"] == "end"]
    assert sorted(ends) == [(phase, rank) for phase in PHASES for rank in range(launched.workers)]
    for experiment, runs in ((launched.main, ["preempted", "out_of_operations"]), (launched.leaving, ["preempted"])):
        assert experiment.state is client.ExperimentState.COMPLETED
        trial = launched.trial(experiment)
        assert (trial.state, trial.restarts) == (client.TrialState.COMPLETED, 0)
        assert [row["end_cause"] for row in launched.runs(trial)] == runs


def test_each_public_method_has_a_check() -> None:
    """A method that is added to a documented class comes with a check of that name."""
    checked = {re.sub(r"\(.*", "", name) for name in NAMES}
    classes = [value for value in vars(core).values() if inspect.isclass(value) and value.__name__ in core.__all__]
    classes += [det.ClusterInfo, det.TrialInfo, det.RendezvousInfo, det.ResourcesInfo]
    public = {
        f"{kind.__name__}.{name}"
        for kind in classes
        if not issubclass(kind, enum.Enum)
        for name, value in vars(kind).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, (property, classmethod, staticmethod)))
    }
    public |= {name for name in core.__all__ if inspect.isfunction(getattr(core, name))}
    public |= {"get_cluster_info", "import_from_path"}
    assert public - checked == UNCHECKED
    assert set(SHOWN) <= set(NAMES), "a comparison with no check"


UNCHECKED = {"CheckpointContext.close", "DistributedContext.from_tf_config"}
"""What has no effect that could be seen: it frees connections to a storage. And what needs TensorFlow, which is not in
the trials' environment here: harness/tests has it with a stand-in.
"""
