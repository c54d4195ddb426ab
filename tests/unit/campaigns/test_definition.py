"""Definitions: what is read from YAML, and every problem with its field."""

from __future__ import annotations

from typing import Any

import pytest

from workflows.campaigns.definition import MOST_STEPS, DefinitionError, StepKind, checked_params, parse_definition

CAMPAIGN = """
name: nightly
params: {epochs: 3, data: /data/today, quick: false}
schedule: {cron: 0 2 * * 1-5, time_zone: Europe/Berlin, overlap: buffer_one}
steps:
  pretrain:
    experiment: pretrain.yaml
  search:
    experiment:
      name: search
      searcher:
        source_checkpoint_uuid: ${steps.pretrain.best_checkpoint}
      hyperparameters: {epochs: "${params.epochs}"}
    retries: 2
  tune:
    experiment:
      hyperparameters:
        lr: ${steps.search.hparams.lr}
  evaluate:
    task:
      entrypoint: python3 evaluate.py ${steps.tune.best_checkpoint} --at ${run.date}
    after: [search]
    if_failed: continue
  publish:
    register:
      checkpoint: ${steps.tune.best_checkpoint}
      model: nightly
    when: ${steps.tune.metric} < 0.1 and ${steps.evaluate.exit_code} == 0
    reuse: false
"""
FILES = {"pretrain.yaml": "name: pretrain\nentrypoint: python3 train.py\n"}


def refusal(text: str) -> str:
    with pytest.raises(DefinitionError) as refused:
        parse_definition(text, FILES.get)
    return str(refused.value)


def test_a_definition_is_read() -> None:
    found = parse_definition(CAMPAIGN, FILES.get)
    assert [(name, step.kind) for name, step in found.steps.items()] == [
        ("pretrain", StepKind.EXPERIMENT),
        ("search", StepKind.EXPERIMENT),
        ("tune", StepKind.EXPERIMENT),
        ("evaluate", StepKind.TASK),
        ("publish", StepKind.REGISTER),
    ]
    assert found.steps["pretrain"].work == {"name": "pretrain", "entrypoint": "python3 train.py"}
    assert found.before == {
        "pretrain": [],
        "search": ["pretrain"],
        "tune": ["search"],
        "evaluate": ["search", "tune"],
        "publish": ["tune", "evaluate"],
    }
    assert found.order == list(found.steps)


def test_it_is_the_same_when_it_was_stored() -> None:
    found = parse_definition(CAMPAIGN, FILES.get)
    for by_alias in (True, False):
        assert type(found).model_validate(found.model_dump(mode="json", by_alias=by_alias)) == found
    assert type(found).model_validate_json(found.model_dump_json()) == found


def test_steps_may_be_written_in_any_order() -> None:
    text = "name: x\nsteps:\n  b: {experiment: {a: '${steps.a.id}'}}\n  a: {task: {entrypoint: x}}\n"
    assert parse_definition(text, FILES.get).order == ["a", "b"]


def step(**fields: Any) -> str:
    """A campaign with this step behind one of each kind."""
    import json

    steps = {
        "train": {"experiment": {"name": "t"}},
        "check": {"task": {"entrypoint": "true"}},
        "last": {"task": {"entrypoint": "true"}, **fields},
    }
    if "experiment" in fields or "register" in fields:
        del steps["last"]["task"]
    return json.dumps({"name": "x", "params": {"epochs": 3}, "steps": steps})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "campaign: expected a map"),
        ("- a", "campaign: expected a map"),
        ("name: [", "campaign: "),
        ("name: x", "steps: expected a map"),
        ("name: x\nsteps: []", "steps: expected a map"),
        ("steps: {a: {task: {}}}", "name: it is missing"),
        ("name: ' '\nsteps: {a: {task: {}}}", "name: expected a text that is not blank"),
        ("name: x\nstepz: 1\nsteps: {a: {task: {}}}", "stepz: unknown key: did you mean steps?"),
        ("name: x\nsteps: {a: 1}", "steps.a: expected a map"),
        ("name: x\nsteps: {a: {}}", "steps.a: it has none of them"),
        ("name: x\nsteps: {a: {task: {}, experiment: {}}}", "steps.a: it has experiment and task"),
        ("name: x\nsteps: {'a b': {task: {}}}", "steps.a b: expected a name of letters"),
        ("name: x\nsteps: {a: {experiment: gone.yaml}}", "steps.a.experiment: 'gone.yaml': no such file"),
        ("name: x\nworkspace: w\nsteps: {a: {task: {}}}", "workspace: workspace and project go together"),
        (
            "name: x\nschedule: {cron: 99 * * * *}\nsteps: {a: {task: {}}}",
            "schedule.cron: minute '99': expected 0 to 59",
        ),
        ("name: x\nschedule: {cron: '@daily', time_zone: Mars}\nsteps: {a: {task: {}}}", "schedule.time_zone: 'Mars'"),
        ("name: x\nschedule: {cron: '@daily', overlap: no}\nsteps: {a: {task: {}}}", "schedule.overlap: 'no'"),
        ("name: x\nschedule: {cron: '@daily', catch_up: 99d}\nsteps: {a: {task: {}}}", "schedule.catch_up: '99d'"),
        ("name: x\nparams: {a b: 1}\nsteps: {a: {task: {}}}", "params.a b: expected a name"),
        ("name: x\nparams: {a: [1]}\nsteps: {a: {task: {}}}", "params.a: "),
        (step(after=["trian"]), "steps.last.after.0: 'trian': there is no such step: did you mean train?"),
        (step(after=["last"]), "steps.last.after.0: 'last': a step can't come after itself"),
        (step(retries=11), "steps.last.retries: '11': expected less than or equal to 10"),
        (step(if_failed="go"), "steps.last.if_failed: 'go': expected 'stop' or 'continue'"),
        (step(wen="true"), "steps.last.wen: unknown key: did you mean when?"),
        (step(when="${steps.train.metric} >"), "steps.last.when: it ends early"),
        (step(when="${steps.check.metric} > 1"), "a step of the kind task has no output 'metric'"),
        (step(when="${steps.train.metrik} > 1"), "has no output 'metrik': did you mean metric?"),
        (step(when="${steps.train.metrics} > 1"), "expected a name behind metrics"),
        (step(when="${steps.train.id.x} > 1"), "id is one value"),
        (step(when="${params.epoch} > 1"), "there is no such parameter: did you mean params.epochs?"),
        (step(when="${run.day} > 1"), "expected one of ${run.number}"),
        (
            step(task={"entrypoint": "${steps.gone.id}"}),
            "steps.last.task.entrypoint: ${steps.gone.id}: there is no such",
        ),
        (step(task={"entrypoint": "${steps.last.id}"}), "a step can't refer to itself"),
        (
            step(register={"checkpoint": "${steps.train.metric}", "model": "m"}),
            "steps.last.register.checkpoint: ${steps.train.metric}: it is a number: expected a checkpoint",
        ),
        (
            step(experiment={"searcher": {"source_trial_id": "${steps.train.best_checkpoint}"}}),
            "it is a checkpoint: expected a trial, such as ${steps.train.best_trial}",
        ),
        (step(register={"checkpoint": "x"}), "steps.last.register.model: it is missing"),
        (step(register={"checkpoint": "x", "model": "m"}, template="t"), "steps.last.template: expected none"),
    ],
)
def test_what_is_wrong_is_said_with_its_field(text: str, said: str) -> None:
    assert said in refusal(text)


def test_a_problem_names_its_line() -> None:
    assert "(line 13)" in refusal(CAMPAIGN.replace("${params.epochs}", "${params.epoch}"))


def test_all_problems_are_said_at_once() -> None:
    text = (
        CAMPAIGN.replace("pretrain.best", "pretrain.bast")
        .replace("0 2 * * 1-5", "0 2 * *")
        .replace("nightly\n", "' '\n", 1)
    )
    assert len(refusal(text).splitlines()) == 3


def test_steps_that_wait_for_each_other_are_refused() -> None:
    text = "name: x\nsteps:\n  a: {task: {}, after: [c]}\n  b: {task: {}, after: [a]}\n  c: {task: {}, after: [b]}\n"
    assert "steps.a: its steps wait for each other: a after c after b after a" in refusal(text)


def test_there_are_limits() -> None:
    steps = "".join(f"  s{n}: {{task: {{}}}}\n" for n in range(MOST_STEPS + 1))
    assert f"steps: {MOST_STEPS + 1} steps, the limit is {MOST_STEPS}" in refusal(f"name: x\nsteps:\n{steps}")
    many = "[" + ",".join(["'${run.number}'"] * 1001) + "]"
    assert "1001 references" in refusal(f"name: x\nsteps:\n  a: {{task: {{x: {many}}}}}\n")
    assert "characters" in refusal("#" * 200_001)


def test_parameters_have_the_types_of_their_defaults() -> None:
    definition = parse_definition(CAMPAIGN, FILES.get)
    assert checked_params(definition, {"epochs": 0.5, "quick": True}) == {
        "epochs": 0.5,
        "data": "/data/today",
        "quick": True,
    }
    with pytest.raises(DefinitionError) as refused:
        checked_params(definition, {"epochs": "7", "quick": 1, "data": "x" * 5000, "lr": 1})
    said = str(refused.value)
    assert "params.epochs: '7': expected a number, as 3 is" in said
    assert "params.quick: '1': expected a boolean" in said
    assert "params.data: 5000 characters" in said
    assert "params.lr: the campaign has no such parameter; it has epochs, data, quick" in said
