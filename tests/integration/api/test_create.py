"""Creating, listing and editing experiments while Temporal is away: records and outbox hold what is to be done."""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import tarfile
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import yaml
from sqlalchemy import Engine, event, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from api.app import create_app
from api.errors import Unavailable
from api.services import contexts, experiments
from api.services.pools import offered
from api.settings import ApiSettings, TemporalSettings
from api.temporal.commands import Commands, StillClosing
from api.temporal.connection import Connection
from api.temporal.outbox import START_EXPERIMENT, post, release_start
from database.models import (
    Agent,
    Experiment,
    HeldStart,
    ModelDefinition,
    Outbox,
    ResourcePool,
    SearchDecision,
    Trial,
)
from database.pipeline import pipelined
from tests.integration.api.served import SINGLE, Caller, Served, a_file, until
from tests.kit.servers import free_port
from workflows.lifecycle.experiment import Command, ExperimentState
from workflows.messages import CommandResult, ExperimentRun, Timing

PATH = "/api/v1/experiments"
MANY = "/api/v1/undeterred/experiments"
CORPUS = sorted((Path(__file__).parents[2] / "unit" / "config" / "corpus").glob("*.yaml"))


def request(api: Served, *files: dict[str, Any], text: str | None = None, **more: Any) -> dict[str, Any]:
    changes = more.pop("config", {})
    return {
        "config": text if text is not None else yaml.safe_dump(api.config(**changes)),
        "modelDefinition": list(files),
        **more,
    }


def counts(api: Served) -> tuple[int, ...]:
    with api.database.read() as session:
        return tuple(
            session.scalar(select(func.count()).select_from(m)) or 0 for m in (Experiment, ModelDefinition, Outbox)
        )


async def test_experiment_is_started_once_and_after_its_record_when_temporal_answers(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    async def start(run: ExperimentRun) -> None:
        with api.database.read() as session:
            started.append(session.get_one(Experiment, run.experiment_id).id)

    monkeypatch.setattr(api.commands, "start_experiment", start)
    monkeypatch.setattr(api.parts.dispatcher, "_load", list)  # it would do the same, a little later
    made = await api.user().post(PATH, request(api, activate=True))
    statement = select(Outbox.sent_at).where(Outbox.workflow_id == f"experiment-{made['experiment']['id']}")

    def is_noted() -> bool:
        with api.database.read() as session:
            return session.scalars(statement).one() is not None

    await until(is_noted)
    assert started.count(made["experiment"]["id"]) == 1


# -- several in one request ------------------------------------------------------------------------------------------


def many(api: Served, *changes: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A request for experiments that differ by these changes."""
    return {"experiments": [{"config": yaml.safe_dump(api.config(**change)), **more} for change in changes]}


async def code_of(user: Caller, experiment_id: int) -> bytes:
    """The files of an experiment, without the time at which they were packed."""
    return gzip.decompress(base64.b64decode((await user.get(f"{PATH}/{experiment_id}/model_def"))["b64Tgz"]))


async def test_experiments_of_one_request_are_like_those_of_single_ones(api: Served) -> None:
    user, file = api.user(), a_file("train.py")
    await user.post("/api/v1/templates/of-many", {"config": {"description": "from the template"}})
    made = await user.post(
        MANY,
        {
            **many(api, {"name": "a"}, {"name": "b"}, activate=True, template="of-many"),
            "modelDefinition": [file],
        },
    )
    ids = [each["id"] for each in made["experiments"]]
    assert [each["name"] for each in made["experiments"]] == ["a", "b"]
    assert ids == sorted(set(ids))
    alone = await user.post(PATH, {**request(api, file, config={"name": "c"}, activate=True), "template": "of-many"})
    for number in ids:
        shown = (await user.get(f"{PATH}/{number}"))["experiment"]
        differs = {key for key, value in alone["experiment"].items() if shown[key] != value}
        assert differs <= {"id", "jobId", "name", "config", "originalConfig", "trialIds", "startTime", "duration"}, (
            differs
        )
        assert (shown["state"], shown["description"], shown["numTrials"]) == ("STATE_QUEUED", "from the template", 1)
        [start] = api.posted(f"experiment-{number}", START_EXPERIMENT)
        assert start["experiment_id"] == number
        assert await code_of(user, number) == await code_of(user, alone["experiment"]["id"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"searcher": {"name": "single"}}, "searcher: metric is a required property"),
        ({"resources": {"resource_pool": "nowhere"}}, "nowhere"),
        ({"project": "nowhere", "workspace": "nowhere"}, "nowhere"),
        ({"entrypoint": None}, "entrypoint"),
    ],
)
async def test_one_that_is_wrong_is_named_and_none_is_created(api: Served, change: dict[str, Any], said: str) -> None:
    user, before = api.user(), counts(api)
    body = many(api, {}, {}, change, {}, activate=True)
    status = 404 if "project" in change else 400
    message = await user.refused(status, "POST", MANY, body)
    assert message.startswith("experiments[2]: ")
    assert said in message
    assert counts(api) == before


async def test_a_hundred_experiments_cost_the_statements_of_ten(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a network each statement is a way there and back, while other writers wait."""
    monkeypatch.setattr(api.parts.dispatcher, "_load", list)  # its statements come whenever it has time
    user, statements = api.user(), list[str]()

    async def cost(count: int) -> int:
        body = many(api, *([dict[str, Any]()] * count), activate=True)
        statements.clear()
        await user.post(MANY, body)
        return len(statements)

    event.listen(Engine, "before_cursor_execute", note := lambda *call: statements.append(call[2]))
    try:
        await cost(10)  # what is looked up once
        ten = await cost(10)
        # SQLite, which is in the process, gives an id to one row at a time
        more = 15 if api.database.engine.dialect.name == "postgresql" else 2 * 90 + 15
        assert await cost(100) <= ten + more
    finally:
        event.remove(Engine, "before_cursor_execute", note)


async def test_one_experiment_costs_few_statements(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked up comes together, and is held: the session reads again what nobody refers to."""
    monkeypatch.setattr(api.parts.dispatcher, "_load", list)
    user, statements, asked = api.user(), list[str](), list[list[str]]()
    body = {"config": yaml.safe_dump(api.config()), "modelDefinition": [a_file("train.py")]}
    event.listen(Engine, "before_cursor_execute", note := lambda *call: statements.append(call[2]))
    try:
        for _ in range(4):  # the first one looks up what is remembered; rounds in the background may come in between
            statements.clear()
            await user.post("/api/v1/experiments", body)
            asked.append([each for each in statements if not each.startswith(("BEGIN", "PRAGMA"))])
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert min(map(len, asked)) <= 17, "\n".join(min(asked, key=len))


@pytest.mark.parametrize("searcher", [SINGLE, {"name": "random", "metric": "loss", "max_trials": 3, "max_length": 9}])
async def test_what_a_create_answers_is_what_is_read_afterwards(api: Served, searcher: dict[str, Any]) -> None:
    """The answer is made of what was recorded, without a look into the database."""
    user = api.user()
    secret = {"registry_auth": {"username": "u", "password": "not to be shown"}}
    changes = {"searcher": searcher, "labels": ["a"], "description": "é", "environment": secret}
    for activate in (False, True):
        made = (await user.post(PATH, request(api, a_file("train.py"), config=changes, activate=activate)))[
            "experiment"
        ]
        read = (await user.get(f"{PATH}/{made['id']}"))["experiment"]
        assert made.pop("duration") <= read.pop("duration")
        assert made == read
        assert made["trialIds"]
        assert "not to be shown" not in str(made)
    forked = (await user.post(PATH, request(api, parentId=made["id"])))["experiment"]
    assert forked["forkedFrom"] == made["id"]
    assert forked["modelDefinitionSize"] == made["modelDefinitionSize"] > 0


async def test_statements_of_a_pipeline_fail_as_alone(api: Served) -> None:
    """With the error that is caught elsewhere, and nothing of the transaction stays."""
    before = counts(api)
    made = (await api.user().post(PATH, request(api)))["experiment"]["id"]
    same = insert(SearchDecision).values(experiment_id=made, number=1, decision="{}")

    def write() -> None:
        with api.database.write() as session, pipelined(session):
            session.execute(update(Experiment).where(Experiment.id == made).values(notes="lost"))
            session.execute(same)
            session.execute(same)

    with pytest.raises(IntegrityError):
        write()
    with api.database.read() as session:
        assert session.get_one(Experiment, made).notes == ""
    assert counts(api)[0] == before[0] + 1


async def test_lists_of_experiments_are_bounded(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    user, before = api.user(), counts(api)
    assert "experiments" in await user.refused(400, "POST", MANY, {"experiments": []})
    assert "100" in await user.refused(400, "POST", MANY, many(api, *[dict[str, Any]()] * 101))
    monkeypatch.setattr(experiments, "_MOST_CONTENT", 1000)
    body = {**many(api, *[dict[str, Any]()] * 20), "modelDefinition": [a_file("train.py")]}
    assert "modelDefinition: 20 experiments" in await user.refused(413, "POST", MANY, body)
    assert counts(api) == before


# -- one in a request ------------------------------------------------------------------------------------------------


async def test_search_that_is_too_large_for_its_workflow_says_so(api: Served) -> None:
    promoting, stopping = {"name": "adaptive_asha"}, {"name": "adaptive_asha", "stop_once": True}
    notice = ["searcher.max_trials"]
    for kind, trials, said in (
        (promoting, 40_000, []), (promoting, 40_001, notice), (stopping, 100_000, []), (stopping, 100_001, notice),
        ({"name": "random", "max_concurrent_trials": 1}, 1_000_000, []),
    ):  # fmt: skip
        searcher = {**kind, "metric": "loss", "max_trials": trials, "max_length": {"batches": 1}}
        made = await api.user().post(PATH, {**request(api, config={"searcher": searcher}), "validateOnly": True})
        assert [notice.partition(":")[0] for notice in made["notices"]] == said


@pytest.mark.parametrize("activate", [True, False])
async def test_trials_are_there_when_create_has_answered(api: Served, activate: bool) -> None:
    """No workflow has run: Temporal is away. What it starts with says that all this is recorded."""
    user = api.user()
    searcher = {"name": "random", "metric": "loss", "max_length": 10, "max_trials": 30, "max_concurrent_trials": 3}
    space = {"lr": {"type": "double", "minval": 0, "maxval": 1}}
    experiment_id = await api.created(user, activate=activate, searcher=searcher, hyperparameters=space)
    found = (await user.get(f"{PATH}/{experiment_id}/trials"))["trials"]
    assert [trial["state"] for trial in found] == ["STATE_QUEUED" if activate else "STATE_PAUSED"] * 3
    assert len({trial["hparams"]["lr"] for trial in found}) == 3
    posted = api.posted(f"experiment-{experiment_id}", "start_experiment")
    with api.database.read() as session:
        held = list(session.scalars(select(HeldStart.payload).where(HeldStart.experiment_id == experiment_id)))
    assert (len(posted), len(held)) == ((1, 0) if activate else (0, 1)), "a paused one needs no workflow yet"
    [payload] = posted + held
    run = ExperimentRun.model_validate(payload)
    assert {entry.trial_id for entry in run.trials.values()} == {trial["id"] for trial in found}
    assert (run.is_started, run.is_recorded, run.search.decisions) == (True, True, 1)
    with api.database.read() as session:
        rows = session.scalars(select(SearchDecision).where(SearchDecision.experiment_id == experiment_id)).all()
        assert [row.number for row in rows] == [1]


async def test_paused_experiment_is_started_by_its_first_command(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once start it once, and both are answered by its workflow."""
    user = api.user()
    experiment_id = await api.created(user, activate=False)
    started: list[int] = []
    commanded: list[Command] = []

    async def start(run: ExperimentRun) -> None:
        started.append(run.experiment_id)

    async def command(experiment_id: int, command: Command) -> CommandResult | None:
        if experiment_id not in started:
            return None
        commanded.append(command)
        return CommandResult(state=ExperimentState.ACTIVE)

    monkeypatch.setattr(api.commands, "start_experiment", start)
    monkeypatch.setattr(api.commands, "_command", command)
    monkeypatch.setattr(api.parts.dispatcher, "_load", list)
    await asyncio.gather(*(user.post(f"{PATH}/{experiment_id}/activate") for _ in range(2)))
    assert commanded == [Command.ACTIVATE] * 2
    assert experiment_id in started, "others may wait in the outbox too"
    with api.database.read() as session:
        assert session.get(HeldStart, experiment_id) is None
        rows = session.scalars(select(Outbox).where(Outbox.workflow_id == f"experiment-{experiment_id}")).all()
        assert [row.kind for row in rows if row.sent_at] == ["start_experiment"]


async def test_start_of_a_paused_experiment_goes_before_its_move(api: Served) -> None:
    """What was held waits in front of what needs it."""
    user = api.user()
    experiment_id = await api.created(user, activate=False)
    with api.database.write() as session:
        assert release_start(session, experiment_id)
        post(session, f"experiment-{experiment_id}", "move", {})
        assert not release_start(session, experiment_id), "once"
    with api.database.read() as session:
        statement = select(Outbox.kind).where(Outbox.workflow_id == f"experiment-{experiment_id}").order_by(Outbox.id)
        assert list(session.scalars(statement)) == ["start_experiment", "move"]


@pytest.mark.parametrize("path", CORPUS, ids=[path.stem for path in CORPUS])
async def test_configuration_of_a_stranger_is_accepted(api: Served, path: Path) -> None:
    body = {"config": path.read_text(), "projectId": 1, "validateOnly": True}
    made = await api.user().post(PATH, body)
    assert made["experiment"]["projectId"] in (0, 1)


async def test_storage_that_the_cluster_does_not_touch_is_said_at_creation(api: Served) -> None:
    user = api.user()
    for host_path, said in ((str(api.folder / "mine"), False), ("/mnt/of/my/own", True)):
        text = yaml.safe_dump(api.config(checkpoint_storage={"type": "shared_fs", "host_path": host_path}))
        notices = (await user.post(PATH, {"config": text, "validateOnly": True}))["notices"]
        told = [notice for notice in notices if notice.startswith("checkpoint_storage.host_path: ")]
        assert bool(told) is said, notices
        assert all("UNDETERRED_STORAGE_ROOTS" in notice and host_path in notice for notice in told)


async def test_repeated_create_makes_no_further_trials(api: Served) -> None:
    user = api.user()
    key, wanted = {"Idempotency-Key": "twice"}, request(api)
    ids = {(await user.post(PATH, wanted, headers=key))["experiment"]["id"] for _ in range(2)}
    [experiment_id] = ids
    assert len((await user.get(f"{PATH}/{experiment_id}/trials"))["trials"]) == 1


async def test_experiment_that_goes_on_is_answered_when_it_runs_again(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record ends before its workflow does. Answered before, the user's next command would find nobody there."""
    tries: list[int] = []

    async def start(run: ExperimentRun) -> None:
        tries.append(run.experiment_id)
        if len(tries) < 4:
            raise StillClosing("not closed yet")

    monkeypatch.setattr(api.commands, "start_experiment", start)
    monkeypatch.setattr(api.parts.dispatcher, "_load", list)
    made = await api.user().post(PATH, request(api, activate=True))
    assert tries == [made["experiment"]["id"]] * 4


async def test_creation_warns_of_more_slots_than_are_there_now(api: Served) -> None:
    user, pool = api.user(), "that-is-counted"
    agents = [
        ("one", 2, "docker", True), ("two", 3, "process", True), ("away", 8, "slurm", False), ("none", 0, "docker", True),
    ]  # fmt: skip
    with api.database.write() as session:
        session.add(ResourcePool(name=pool, settings={}))
        session.flush()
        session.add_all(
            Agent(id=name, pool=pool, slot_ids=list(range(size)), launcher=launcher, is_connected=is_connected)
            for name, size, launcher, is_connected in agents
        )
    for slots, warnings in ((5, []), (6, ["LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"])):
        sent = request(api, config={"resources": {"resource_pool": pool, "slots_per_trial": slots}})
        assert (await user.post(PATH, sent))["warnings"] == warnings
    with api.database.read() as session:
        assert offered(session, pool, 5) == ({"docker", "process"}, [])
        assert offered(session, "that-has-none", 0) == (frozenset(), [])


async def test_experiment_is_recorded_and_waits_for_temporal_when_created(api: Served) -> None:
    user = api.user()
    sent = request(api, a_file("src", kind=53), a_file("src/train.py", b"print(1)\n"), activate=True)
    made = await user.post(PATH, sent)
    experiment = made["experiment"]
    assert (experiment["state"], experiment["username"], experiment["archived"]) == (
        "STATE_QUEUED",
        user.username,
        False,
    )
    assert (experiment["projectId"], experiment["workspaceName"], experiment["forkedFrom"]) == (
        1,
        "Uncategorized",
        None,
    )
    assert (experiment["resourcePool"], experiment["searcherType"]) == ("default", "single")
    assert experiment["originalConfig"] == sent["config"]
    assert made["config"] == experiment["config"]
    assert made["config"]["max_restarts"] == 5, "it is fully defaulted"
    shown = await user.get(f"{PATH}/{experiment['id']}")
    assert shown["config"] == made["config"]
    assert shown["jobSummary"] == {"state": "STATE_QUEUED", "jobsAhead": 0}
    [run] = api.posted(f"experiment-{experiment['id']}", "start_experiment")
    assert (run["experiment_id"], run["owner"], run["state"]) == (experiment["id"], user.username, "ACTIVE")


async def test_what_nobody_will_act_on_is_said(api: Served) -> None:
    with api.database.write() as session:
        session.add(Agent(id="a-host", pool="default", slot_ids=[], launcher="process", is_connected=True))
    fields = "environment: {image: i, proxy_ports: [{proxy_port: 1}]}\nbind_mounts: []\n"
    try:
        made = await api.user().post(PATH, {"config": BASE.replace("python3 t.py", "model_def:Trial") + fields})
        plain = await api.user().post(PATH, {"config": BASE})
    finally:
        with api.database.write() as session:  # other tests count agents
            session.delete(session.get_one(Agent, "a-host"))
    named = [notice.partition(":")[0] for notice in made["notices"]]
    assert named == ["environment.image", "environment.proxy_ports"], "a trial class is run as any other entrypoint"
    assert made["notices"][0] == (
        "environment.image: plain processes do nothing with it: trials run in a Python of their agent's host"
    )
    assert plain["notices"] == []


async def test_experiment_is_paused_when_not_activated(api: Served) -> None:
    made = await api.user().post(PATH, request(api, activate=None))
    assert made["experiment"]["state"] == "STATE_PAUSED"


async def test_context_comes_back_as_it_was_sent_when_asked_for(api: Served) -> None:
    run = await api.trial(api.user(), name="A name / with: odd signs" + "x" * 60)
    answers = [
        (await run.container.get(f"{PATH}/{run.experiment_id}/model_def"))["b64Tgz"],
        (await run.container.get(f"/api/v1/tasks/{run.task_id}/context_directory"))["b64Tgz"],
    ]
    assert answers[0] == answers[1]
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(answers[0]))) as archive:
        assert archive.getnames() == ["train.py"]
    file = await run.container.ask("GET", f"/experiments/{run.experiment_id}/model_def")
    assert file.content == base64.b64decode(answers[0])
    assert file.headers["content-type"] == "application/x-gtar"
    name = f"exp{run.experiment_id}_A_name_with_odd_signs" + "x" * 29
    assert file.headers["content-disposition"] == f'attachment; filename="{name}_model_def.tar.gz"'


BASE = "name: x\nentrypoint: python3 t.py\nsearcher: {name: single, metric: loss, max_length: 10}\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it is empty"),
        ("  \n", "it is empty"),
        ("name: [", "line 1"),
        ("- a\n- b\n", "expected object, but got array"),
        (BASE + "max_restart: 3\n", "max_restarts"),
        (BASE + "max_restarts: many\n", "max_restarts"),
        (BASE.replace("name: single", "name: clever"), "'adaptive_asha'"),
        (BASE.replace("metric: loss", "smaller_is_better: true"), "metric"),
        (BASE.replace("entrypoint: python3 t.py\n", ""), "managed experiments require entrypoint"),
        (BASE + "resources: {resource_pool: mars}\n", "resource pool mars does not exist"),
        (BASE + "checkpoint_storage: {type: s3, bucket: b, prefix: a/../b}\n", "prefix cannot contain /../"),
        (BASE + "name: twice\n", "name"),
    ],
    ids=["empty", "blank", "yaml", "list", "misspelt", "type", "searcher", "metric", "entrypoint", "pool", "storage",
         "twice"],
)  # fmt: skip
async def test_config_is_refused_with_its_place_and_nothing_is_left_when_wrong(
    api: Served, text: str, told: str
) -> None:
    user, before = api.user(), counts(api)
    for validate_only in (False, True):
        message = await user.refused(400, "POST", PATH, request(api, text=text, validateOnly=validate_only))
        assert message.startswith("invalid experiment configuration")
        assert told in message
    assert counts(api) == before


async def test_right_word_is_offered_when_a_key_is_misspelt(api: Served) -> None:
    told = await api.user().refused(400, "POST", PATH, request(api, text=BASE + "max_restart: 3\n"))
    assert "did you mean 'max_restarts'" in told.replace('"', "'").lower()


async def test_request_is_refused_when_it_asks_for_what_there_is_not(api: Served) -> None:
    user = api.user()
    assert "template 'mine' not found" in await user.refused(404, "POST", PATH, request(api, template="mine"))
    assert "project 4711 not found" in await user.refused(404, "POST", PATH, request(api, projectId=4711))
    await user.refused(404, "POST", PATH, request(api, config={"workspace": "nowhere", "project": "none"}))
    await user.post(PATH, request(api, config={"workspace": "Uncategorized", "project": "Uncategorized"}, template=""))


async def test_pools_are_named_when_the_wanted_one_does_not_exist(api: Served) -> None:
    with api.database.write() as session:
        session.merge(ResourcePool(name="another"))
    told = await api.user().refused(400, "POST", PATH, request(api, config={"resources": {"resource_pool": "mars"}}))
    assert "there is: another, default" in told
    made = await api.user().post(PATH, request(api, config={"resources": {"resource_pool": "another"}}))
    assert made["experiment"]["resourcePool"] == "another"


async def test_answer_is_complete_and_nothing_is_recorded_when_only_validating(api: Served) -> None:
    user, before = api.user(), counts(api)
    made = await user.post(PATH, request(api, a_file("a.py"), validateOnly=True, activate=True))
    assert counts(api) == before
    real = await user.post(PATH, request(api))
    assert made.keys() == real.keys()
    assert made["experiment"].keys() == real["experiment"].keys()
    assert made["experiment"]["id"] == 0
    assert made["config"].keys() == real["config"].keys()


async def test_context_is_refused_and_nothing_is_left_when_it_is_too_large_or_evil(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, before = api.user(), counts(api)
    evil = [a_file("../up"), a_file("/root"), a_file("link", kind=50), {**a_file("a"), "content": "%"}]
    for file in evil:
        assert "model_definition" in await user.refused(400, "POST", PATH, request(api, file))
    monkeypatch.setattr(contexts, "LIMIT_BYTES", 1000)
    told = await user.refused(413, "POST", PATH, request(api, a_file("big.bin", b"x" * 900), a_file("b", b"x" * 101)))
    assert "big.bin" in told
    assert counts(api) == before


async def test_first_experiment_is_answered_when_a_request_is_repeated_with_its_key(api: Served) -> None:
    user = api.user()
    sent, headers = request(api), {"Idempotency-Key": f"key of {user.username}"}
    first = await user.post(PATH, sent, headers=headers)
    before = counts(api)
    again = await user.post(PATH, sent, headers=headers)
    assert (again["experiment"]["id"], again["config"]) == (first["experiment"]["id"], first["config"])
    assert counts(api) == before
    other = await api.user().post(PATH, sent, headers=headers)
    assert other["experiment"]["id"] != first["experiment"]["id"], "a key belongs to a user"
    assert (await user.post(PATH, sent))["experiment"]["id"] not in (
        first["experiment"]["id"],
        other["experiment"]["id"],
    )


async def test_one_experiment_results_when_the_same_request_comes_ten_times_at_once(api: Served) -> None:
    user = api.user()
    sent, headers = request(api), {"Idempotency-Key": f"at once {user.username}"}
    made = await asyncio.gather(*(user.post(PATH, sent, headers=headers) for _ in range(10)))
    assert len({answer["experiment"]["id"] for answer in made}) == 1
    assert (await user.get(PATH, userIds=user.user_id))["pagination"]["total"] == 1


async def test_key_is_refused_when_it_can_not_be_kept(api: Served) -> None:
    headers = {"Idempotency-Key": "x" * 101}
    assert "Idempotency-Key" in await api.user().refused(400, "POST", PATH, request(api), headers=headers)


async def test_unreachable_temporal_is_told_soon_when_its_port_is_closed() -> None:
    """The real client, against a port where nobody listens; create waits 5 s at most."""
    address = f"127.0.0.1:{free_port()}"
    commands = Commands(Connection(TemporalSettings(temporal_address=address)), Timing(), AsyncMock())
    async with asyncio.timeout(15):
        with pytest.raises(Unavailable, match="does not answer"):
            await commands.client()


async def test_application_starts_when_temporal_is_away(tmp_path: Any) -> None:
    settings = ApiSettings(
        database_url=f"sqlite:///{tmp_path / 'x.db'}",
        temporal_address=f"127.0.0.1:{free_port()}",
        agent_token="x" * 20,  # pyright: ignore[reportArgumentType]
    )
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        assert app.state.parts.cluster_id


# -- looking -----------------------------------------------------------------------------------------------------------


async def several(api: Served, user: Caller, count: int) -> list[int]:
    return [await api.experiment(user) for _ in range(count)]


@pytest.mark.parametrize(
    ("offset", "limit", "picked", "start", "end"),
    [
        (0, 0, slice(0, 5), 0, 5), (0, 2, slice(0, 2), 0, 2), (4, 2, slice(4, 5), 4, 5), (5, 2, slice(5, 5), 5, 5),
        (-2, 0, slice(3, 5), 3, 5), (-9, 1, slice(0, 1), 0, 1), (0, -1, slice(0, 5), 0, 5), (2, -2, slice(0, 0), 2, 2),
    ],
)  # fmt: skip
async def test_page_is_cut_with_a_right_end_when_experiments_are_listed(
    api: Served, offset: int, limit: int, picked: slice, start: int, end: int
) -> None:
    user = api.user()
    ids = await several(api, user, 5)
    found = await user.get(PATH, userIds=user.user_id, offset=offset, limit=limit)
    assert [experiment["id"] for experiment in found["experiments"]] == ids[picked]
    pagination = found["pagination"]
    assert (pagination["startIndex"], pagination["endIndex"], pagination["total"]) == (start, end, 5)


async def test_page_is_refused_when_it_begins_beyond_the_end(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    for path in (PATH, f"{PATH}/{run.experiment_id}/trials", f"{PATH}/{run.experiment_id}/checkpoints",
                 f"/api/v1/trials/{run.trial_id}/workloads", "/api/v1/users", "/api/v1/agents"):  # fmt: skip
        assert "beyond" in await user.refused(400, "GET", path, params={"offset": 100_000, "userIds": user.user_id})


async def test_limit_0_means_100_when_experiments_are_listed(api: Served) -> None:
    user = api.user()
    first = await api.experiment(user)
    with api.database.write() as session:
        row = session.get_one(Experiment, first)
        columns = {c.key: getattr(row, c.key) for c in Experiment.__mapper__.columns if c.key not in ("id", "job_id")}
        session.add_all([Experiment(**columns, job_id=f"{user.username}-{number}") for number in range(104)])
    for limit, count in ((0, 100), (-1, 105), (103, 103), (-2, 0)):
        found = await user.get(PATH, userIds=user.user_id, limit=limit)
        assert (len(found["experiments"]), found["pagination"]["endIndex"], found["pagination"]["total"]) == (
            count,
            count,
            105,
        )


async def test_experiments_are_filtered_and_sorted_when_asked(api: Served) -> None:
    user, other = api.user(), api.user()
    a = await api.experiment(user, name=f"Alpha of {user.username}", description="50% off")
    b = await api.experiment(user, name=f"beta of {user.username}")
    c = await api.experiment(other, name=f"alpha of {user.username}")
    with api.database.write() as session:
        session.execute(update(Experiment).where(Experiment.id == b).values(state="COMPLETED", is_archived=True))

    async def ids(**parameters: Any) -> list[int]:
        return [e["id"] for e in (await user.get(PATH, limit=-1, **parameters))["experiments"] if e["id"] in (a, b, c)]

    assert await ids() == [a, b, c]
    assert await ids(name=f"ALPHA of {user.username}") == [a, c]
    assert await ids(description="50%") == [a]
    assert await ids(users=[user.username]) == [a, b]
    assert await ids(users=[user.username, other.username]) == [a, b, c]
    assert await ids(userIds=[other.user_id]) == [c]
    assert await ids(users=[user.username], archived="true") == [b]
    assert await ids(users=[user.username], archived="false") == [a]
    assert await ids(states=["STATE_COMPLETED", "STATE_ERROR"]) == [b]
    assert await ids(states=["STATE_RUNNING"], users=[user.username]) == [a]
    assert await ids(sortBy="SORT_BY_ID", orderBy="ORDER_BY_DESC") == [c, b, a]
    assert await ids(users=[user.username], sortBy="SORT_BY_STATE", orderBy="ORDER_BY_DESC") == [b, a]


async def test_state_shown_is_that_of_the_furthest_allocation_when_active(api: Served) -> None:
    user = api.user()
    experiment_id = await api.experiment(user)

    async def shown() -> str:
        return (await user.get(f"{PATH}/{experiment_id}"))["experiment"]["state"]

    assert await shown() == "STATE_ACTIVE"
    run = await api.another_trial(experiment_id)
    assert await shown() == "STATE_STARTING"
    await api.agent.post(f"/api/v1/undeterred/allocations/{run.allocation_id}/running")
    await api.another_trial(experiment_id)
    assert await shown() == "STATE_RUNNING"
    trials = (await user.get(f"{PATH}/{experiment_id}/trials"))["trials"]
    assert [trial["state"] for trial in trials] == ["STATE_RUNNING", "STATE_STARTING"]
    assert (await user.get(f"{PATH}/{experiment_id}"))["jobSummary"]["state"] == "STATE_SCHEDULED"


async def test_only_given_fields_change_when_an_experiment_is_patched(api: Served) -> None:
    user = api.user()
    path = f"{PATH}/{await api.experiment(user, description='before')}"
    changed = (await user.patch(path, {"name": "new", "labels": ["b", "a", "b"], "notes": "n", "description": None}))[
        "experiment"
    ]
    assert (changed["name"], changed["labels"], changed["notes"]) == ("new", ["b", "a"], "n")
    assert changed["description"] == "before"
    assert (await user.patch(path, {"labels": []}))["experiment"]["labels"] == []
    assert (await user.patch(path, b""))["experiment"]["name"] == "new"
    assert "not blank" in await user.refused(400, "PATCH", path, {"name": "  "})


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "command", "status"),
    [
        ("ACTIVE", "pause", 503), ("ACTIVE", "activate", 200), ("PAUSED", "activate", 503), ("COMPLETED", "kill", 200),
        ("COMPLETED", "cancel", 200), ("COMPLETED", "pause", 400), ("ERROR", "activate", 400), ("STOPPING_ERROR", "pause", 400),
    ],
)  # fmt: skip
async def test_record_decides_on_a_command_when_no_workflow_runs(
    api: Served, state: str, command: str, status: int
) -> None:
    """The workflow is closed; or it is not started yet, and the same request succeeds later."""
    user = api.user()
    experiment_id = await api.experiment(user)
    with api.database.write() as session:
        session.execute(update(Experiment).where(Experiment.id == experiment_id).values(state=state))
    api.commands.knows_nothing = True
    response = await user.ask("POST", f"{PATH}/{experiment_id}/{command}")
    assert response.status_code == status, response.text
    if status == 400:
        assert response.json()["error"]["reason"] == "FailedPrecondition"
        assert state in response.json()["message"]


async def test_command_is_to_be_tried_again_when_temporal_is_away(api: Served) -> None:
    user = api.user()
    run = await api.trial(user)
    for path in (f"{PATH}/{run.experiment_id}/kill", f"/api/v1/trials/{run.trial_id}/kill"):
        response = await user.ask("POST", path)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert "not found" in await user.refused(404, "POST", f"{PATH}/999999/pause")
    assert "not found" in await user.refused(404, "POST", "/api/v1/trials/999999/kill")


async def test_experiment_is_archived_only_when_it_is_over(api: Served) -> None:
    user = api.user()
    path = f"{PATH}/{await api.experiment(user)}"
    told = await user.refused(400, "POST", f"{path}/archive")
    assert "Experiment is not in terminal state." in told
    with api.database.write() as session:
        session.execute(
            update(Experiment).where(Experiment.id == int(path.rpartition("/")[2])).values(state="CANCELED")
        )
    for command, archived in (("archive", True), ("archive", True), ("unarchive", False), ("unarchive", False)):
        assert await user.post(f"{path}/{command}") == {}
        assert (await user.get(path))["experiment"]["archived"] is archived


async def test_trials_are_sorted_with_nulls_last_when_asked(api: Served) -> None:
    user = api.user()
    first = await api.trial(user, searcher=SINGLE)
    runs = [first, *[await api.another_trial(first.experiment_id) for _ in range(2)]]
    with api.database.write() as session:
        for run, metric in zip(runs, (2.0, None, 1.0), strict=True):
            session.execute(update(Trial).where(Trial.id == run.trial_id).values(searcher_metric=metric))
    path = f"{PATH}/{first.experiment_id}/trials"

    async def order(**parameters: str) -> list[int]:
        found = (await user.get(path, **parameters))["trials"]
        return [[run.trial_id for run in runs].index(trial["id"]) for trial in found]

    assert await order() == [0, 1, 2]
    assert await order(orderBy="ORDER_BY_DESC") == [2, 1, 0]
    assert await order(sortBy="SORT_BY_BEST_VALIDATION_METRIC") == [2, 0, 1]
    assert await order(sortBy="SORT_BY_BEST_VALIDATION_METRIC", orderBy="ORDER_BY_DESC") == [0, 2, 1]
    assert await order(sortBy="SORT_BY_END_TIME", orderBy="ORDER_BY_DESC") == [0, 1, 2]
    assert await order(states="STATE_COMPLETED") == []
    page = await user.get(path, limit=2, offset=1)
    assert (page["pagination"]["endIndex"], page["pagination"]["total"]) == (3, 3)
