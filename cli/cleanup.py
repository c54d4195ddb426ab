"""`det experiment continue`, `gc` and `set gc-policy`: what can be done with an experiment that has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli import render, session
from cli.options import ExperimentId, Yes, lists
from cli.render import Form


def continue_experiment(
    experiment_id: ExperimentId,
    config_file: Annotated[
        Path | None,
        typer.Option("--config-file", help="What is to be different in its configuration.", show_default=False),
    ] = None,
    config: Annotated[list[str] | None, typer.Option("--config", help="The same, one by one: key.sub=value.")] = None,
    follow_first_trial: Annotated[
        bool, typer.Option("--follow-first-trial", "-f", help="Print the first trial's log until it ends.")
    ] = False,
) -> None:
    """Go on with an experiment that has ended: trials that failed or were canceled run on from their checkpoints."""
    from cli.create import override_config, read_config
    from determined.common.experimental._wire import new_key

    body: dict[str, Any] = {"id": experiment_id}
    if config_file is not None:
        body["overrideConfig"] = read_config(config_file, config or [])
    elif config:
        body["overrideConfig"] = override_config("{}\n", config, "--config")
    session.get().post("/api/v1/experiments/continue", body, idempotency_key=new_key())
    render.say(f"Continued experiment {experiment_id}")
    if follow_first_trial:
        from cli.follow import follow_log

        follow_log(experiment_id)


Best = Annotated[
    int | None, typer.Option("--save-experiment-best", min=0, help="Best checkpoints of the whole experiment.")
]
TrialBest = Annotated[int | None, typer.Option("--save-trial-best", min=0, help="Best checkpoints of each trial.")]
TrialLatest = Annotated[int | None, typer.Option("--save-trial-latest", min=0, help="Newest of each trial.")]


@lists
def gc(
    form: Form,
    experiment_id: ExperimentId,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    save_experiment_best: Best = None,
    save_trial_best: TrialBest = None,
    save_trial_latest: TrialLatest = None,
    yes: Yes = False,
) -> None:
    """Remove the checkpoints of an experiment that has ended and that its policy does not keep.

    With --dry-run the --save options show what another policy would remove.
    """
    policy = _policy(save_experiment_best, save_trial_best, save_trial_latest)
    if policy and not dry_run:
        raise ValueError(
            f"the --save options go with --dry-run; `det e set gc-policy {experiment_id}` changes the policy."
        )
    doomed = _preview(experiment_id, policy)
    _print(doomed, form)
    if dry_run or not doomed:
        return
    render.confirm(f"Remove {len(doomed)} checkpoints of experiment {experiment_id}, for good?", yes)
    session.get().post(f"/api/v1/undeterred/experiments/{experiment_id}/gc")
    tell = render.note if form.is_for_programs else render.say
    tell(f"The removal of {len(doomed)} checkpoints of experiment {experiment_id} has begun")


def set_gc_policy(
    experiment_id: ExperimentId,
    save_experiment_best: Annotated[
        int, typer.Option("--save-experiment-best", min=0, help="Best checkpoints of the whole experiment.")
    ],
    save_trial_best: Annotated[int, typer.Option("--save-trial-best", min=0, help="Best checkpoints of each trial.")],
    save_trial_latest: Annotated[int, typer.Option("--save-trial-latest", min=0, help="Newest of each trial.")],
    yes: Yes = False,
) -> None:
    """Change how many checkpoints are kept; of an experiment that has ended, the others are removed now."""
    policy = _policy(save_experiment_best, save_trial_best, save_trial_latest)
    doomed = _preview(experiment_id, policy)
    if doomed:
        _print(doomed, render.TABLE)
        render.confirm(f"Change the policy of experiment {experiment_id}, and remove these in the end?", yes)
    storage = {"saveExperimentBest": save_experiment_best, "saveTrialBest": save_trial_best}
    storage["saveTrialLatest"] = save_trial_latest
    session.get().patch(f"/api/v1/experiments/{experiment_id}", {"checkpointStorage": storage})
    render.say(f"Set the checkpoint policy of experiment {experiment_id}")


def _policy(experiment_best: int | None, trial_best: int | None, trial_latest: int | None) -> dict[str, int]:
    given = {
        "save_experiment_best": experiment_best,
        "save_trial_best": trial_best,
        "save_trial_latest": trial_latest,
    }
    return {name: value for name, value in given.items() if value is not None}


def _preview(experiment_id: int, policy: dict[str, int]) -> list[dict[str, Any]]:
    answer = session.get().get(f"/experiments/{experiment_id}/preview_gc", policy).json()
    return answer["checkpoints"]


def _print(doomed: list[dict[str, Any]], form: Form) -> None:
    if not doomed and not form.is_for_programs:
        render.say("No checkpoint would be removed.")
        return
    total = sum(int(row["Size"]) for row in doomed)
    rows = [[row["TrialID"], row["StepsCompleted"], row["UUID"], render.size(int(row["Size"]))] for row in doomed]
    render.listing(["Trial ID", "# of Batches", "UUID", "Size"], rows, form, raw=doomed)
    if not form.is_for_programs:
        render.say(f"{len(doomed)} checkpoints, {render.size(total)}")
