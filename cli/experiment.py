"""`det experiment`: create experiments, look at them, command them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli import budget, cleanup, experiment_change, experiment_table, paging, render, search, session, tracked
from cli.bundles import bundled
from cli.follow import end_with, first_trial, follow_log
from cli.follow import follow as follow_to_end
from cli.group import command_of, new_app
from cli.options import (
    ExperimentId,
    Json,
    LogLines,
    Quiet,
    Yes,
    lists,
    paged,
    shows,
)
from cli.plan import plan
from cli.render import Form

app = new_app(
    "Create, list, watch and control experiments.",
    aliases={"ls": "list", "lt": "list-trials", "lc": "list-checkpoints", "unpause": "activate"},
    default="list",
)
label_app = new_app("Change an experiment's labels.")
set_app = new_app("Change the settings of an experiment.")
app.add_typer(label_app, name="label")
app.add_typer(set_app, name="set")
app.add_typer(budget.experiment_app, name="budget")


def command() -> Any:
    """The group as a command."""
    return command_of(app)


for _command in (plan, cleanup.gc, *search.COMMANDS):
    app.command(_command.__name__)(_command)
app.command("continue")(cleanup.continue_experiment)
set_app.command("gc-policy")(cleanup.set_gc_policy)
app.command("move")(experiment_change.move)
app.command("export")(tracked.to_files)
app.command("bulk")(experiment_change.bulk)
app.command("delete-tb-files")(experiment_change.delete_tb_files)
set_app.command("max-slots")(experiment_change.set_max_slots)
set_app.command("weight")(experiment_change.set_weight)
set_app.command("priority")(experiment_change.set_priority)
set_app.command("log-retention")(experiment_change.set_log_retention)


@app.command("list")
@paged
def list_experiments(
    form: Form,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Include archived ones and those of all users.")] = False,
    show_project: Annotated[
        bool, typer.Option("--show_project", "--show-project", help="Show workspace and project.")
    ] = False,
) -> None:
    """List experiments, the newest last: mine that are not archived, or with -a all."""
    params: dict[str, Any] = {"sortBy": "SORT_BY_ID", "orderBy": "ORDER_BY_DESC"} | experiment_table.filters(all_)
    found = experiment_table.fetch(form, **params)
    experiment_table.show(found[::-1], form, with_archived=all_, with_project=show_project)


@app.command("create")
def create(
    config_file: Annotated[Path, typer.Argument(help="The configuration, a YAML file.", show_default=False)],
    model_def: Annotated[Path | None, typer.Argument(help="The folder with the code.", show_default=False)] = None,
    include: Annotated[list[Path] | None, typer.Option("--include", "-i", help="Put this beside the code.")] = None,
    config: Annotated[list[str] | None, typer.Option("--config", help="Override: key.sub=value.")] = None,
    template: Annotated[str | None, typer.Option("--template", help="Fill the configuration up from it.")] = None,
    project_id: Annotated[int | None, typer.Option("--project_id", help="The project to put it into.")] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Do not start it.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Watch its trials until it ends.")] = False,
    follow_first_trial: Annotated[
        bool,
        typer.Option(
            "--follow-first-trial",
            "-f",
            help="In a terminal as --follow, with logs on a key; over a pipe print the first trial's log.",
        ),
    ] = False,
    test_mode: Annotated[
        bool, typer.Option("--test-mode", "--test", "-t", help="Check the configuration, run one trial for one step.")
    ] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Run one trial of length 1 on this machine, without a cluster.")
    ] = False,
) -> None:
    """Create an experiment. Prints `Created experiment N`.

    A file with several YAML documents, `---` between them, creates one of each, all or none.
    """
    from cli import create as creation
    from cli.check import check_config

    if sum((paused, follow, follow_first_trial, test_mode)) > 1:
        raise ValueError("only one of --paused, --follow, --follow-first-trial and --test-mode can be given.")
    if local and any((paused, follow, follow_first_trial, template, project_id is not None)):
        raise ValueError("--local needs no cluster; of the other options only --config, --include and --test-mode fit.")
    texts = creation.read_configs(config_file, config or [], test_mode and not local)
    if len(texts) > 1 and any((follow, follow_first_trial, test_mode, local)):
        raise ValueError(f"{config_file} has {len(texts)} documents: --follow, -f, --test-mode and --local take one.")
    folder = creation.pack(model_def, include or [])
    if len(texts) > 1:
        for text in texts:
            check_config(text, str(config_file), template=template, has_positions=not config)
        creation.show(folder, model_def)
        for made in creation.send_many(texts, folder, project_id=project_id, template=template, activate=not paused):
            render.say(f"Created experiment {made['id']}")
        return
    [text] = texts
    if local:
        from cli.local import run_local

        raise typer.Exit(run_local(text, str(config_file), folder.files(), has_positions=not config))
    check_config(text, str(config_file), template=template, has_positions=not (config or test_mode))
    creation.show(folder, model_def)
    if test_mode:
        creation.send(text, folder, project_id=project_id, template=template, validate_only=True)
        render.note("The configuration is valid.")
    created = creation.send(text, folder, project_id=project_id, template=template, activate=not paused)
    experiment_id = int(created["experiment"]["id"])
    render.say(f"Created experiment {experiment_id}")
    if follow or (follow_first_trial and render.is_interactive()):
        end_with(follow_to_end(experiment_id))
    if follow_first_trial or test_mode:
        follow_log(experiment_id, wait=test_mode)


@app.command("follow")
def follow_experiment(experiment_id: ExperimentId) -> None:
    """Watch the trials of an experiment until it ends. Exit code 0 only if it is COMPLETED."""
    end_with(follow_to_end(experiment_id))


@app.command("wait")
def wait(
    experiment_id: ExperimentId,
    polling_interval: Annotated[float, typer.Option("--polling-interval", min=0.1, help="Seconds.")] = 5,
) -> None:
    """Wait until an experiment ends. Exit code 0 only if it is COMPLETED."""
    from cli.progress import progress
    from determined.experimental import Experiment

    experiment = Experiment(experiment_id, session.get())
    try:
        with progress(f"experiment {experiment_id}", lambda: (experiment.progress or 0.0, 1.0), in_bytes=False):
            state = experiment.wait(polling_interval).name
    except KeyboardInterrupt:
        render.note(f"\nstopped waiting, the experiment goes on; wait again with `det experiment wait {experiment_id}`")
        raise
    render.say(f"experiment {experiment_id}: {state}")
    end_with(state)


@app.command("describe")
@shows
def describe(
    form: Form,
    experiment_ids: Annotated[str, typer.Argument(help="Numbers, with commas between them.", show_default=False)],
    metrics: Annotated[bool, typer.Option("--metrics", help="Show training metrics too.")] = False,
    outdir: Annotated[Path | None, typer.Option("--outdir", help="Write the tables as CSV files into it.")] = None,
) -> None:
    """Show experiments, their trials and workloads. --columns is about the table of the experiments."""
    from cli.describe import describe_experiments

    ids = [_number(word) for word in experiment_ids.split(",")]
    describe_experiments(ids, form, with_training=metrics, outdir=outdir)


@app.command("config")
def config_of(experiment_id: ExperimentId, as_json: Json = False) -> None:
    """Print an experiment's complete configuration, as YAML."""
    answer = session.fetch(f"experiments/{experiment_id}")
    (render.json_out if as_json else render.yaml_out)(answer.get("config") or answer["experiment"]["config"])


@app.command("config-schema")
def config_schema() -> None:
    """Print the JSON Schema of configurations, for editors."""
    render.json_out(session.anonymous().get("/api/v1/undeterred/config-schema").json())


@app.command("list-trials")
@paged
def list_trials(form: Form, experiment_id: ExperimentId) -> None:
    """List an experiment's trials; why they failed, if any did."""
    path = f"experiments/{experiment_id}/trials"
    found = paging.fetch(path, "trials", form)
    rows = [
        [
            t["id"],
            render.state(t["state"]),
            t.get("hparams"),
            render.time_of(t.get("startTime")),
            render.time_of(t.get("endTime")),
            t.get("totalBatchesProcessed"),
            t.get("searcherMetricValue"),
        ]
        for t in found
    ]
    headers = ["Trial ID", "State", "H-Params", "Started", "Ended", "# of Batches", "Searcher Metric"]
    if any(t.get("message") for t in found):
        headers.append("Message")
        rows = [[*row, t.get("message") or ""] for row, t in zip(rows, found, strict=True)]
    render.listing(headers, rows, form, raw=found)


@app.command("list-checkpoints")
@lists
def list_checkpoints(
    form: Form,
    experiment_id: ExperimentId,
    best: Annotated[int | None, typer.Option("--best", min=1, help="Only this many of the best.")] = None,
) -> None:
    """List an experiment's checkpoints."""
    from cli.describe import CHECKPOINT_HEADERS, checkpoint_row

    params: dict[str, Any] = {"sortByAttr": "SORT_BY_SEARCHER_METRIC"} if best else {}
    found = session.fetch_all(f"experiments/{experiment_id}/checkpoints", "checkpoints", best or form.limit, **params)
    render.listing(CHECKPOINT_HEADERS, map(checkpoint_row, found), form, raw=found)


@app.command("logs")
@bundled
def logs(experiment_id: ExperimentId, lines: LogLines) -> None:
    """Print the log of an experiment's first trial."""
    from cli.log_output import print_logs

    print_logs(first_trial(experiment_id, wait=lines.follow), lines)


@app.command("download")
def download(
    experiment_id: ExperimentId,
    output_dir: Annotated[Path, typer.Option("--output-dir", "-o", help="Where to put them.")] = Path("checkpoints"),
    top_n: Annotated[
        int, typer.Option("--top-n", min=1, help="The number of trials whose best checkpoints to download.")
    ] = 1,
    sort_by: Annotated[str | None, typer.Option("--sort-by", help="By this metric (default: the searcher's).")] = None,
    smaller_is_better: Annotated[bool | None, typer.Option(help="Goes with --sort-by.")] = None,
    quiet: Quiet = False,
) -> None:
    """Download an experiment's best checkpoints into folders named by their ids."""
    from cli.describe import download_checkpoint
    from determined.experimental import Experiment

    experiment = Experiment(experiment_id, session.get())
    for checkpoint in experiment.top_n_checkpoints(top_n, sort_by, smaller_is_better):
        download_checkpoint(checkpoint, output_dir / checkpoint.uuid, quiet)


@app.command("download-model-def")
def download_model_def(
    experiment_id: ExperimentId,
    output_dir: Annotated[Path, typer.Option("--output-dir", help="Where to put it.")] = Path(),
) -> None:
    """Download the folder that an experiment was created with, as a tar.gz file."""
    from determined.experimental import Experiment

    render.say(Experiment(experiment_id, session.get()).download_code(str(output_dir)))


@app.command("pause")
def pause(experiment_id: ExperimentId) -> None:
    """Pause an experiment: its trials store checkpoints and free their slots."""
    _do(experiment_id, "pause", "Paused")


@app.command("activate")
def activate(experiment_id: ExperimentId) -> None:
    """Resume an experiment after a pause."""
    _do(experiment_id, "activate", "Activated")


@app.command("cancel")
def cancel(experiment_id: ExperimentId) -> None:
    """Cancel an experiment: its trials store checkpoints, then it ends."""
    _do(experiment_id, "cancel", "Canceled")


@app.command("kill")
def kill(experiment_id: ExperimentId) -> None:
    """Kill an experiment at once, without waiting for checkpoints."""
    _do(experiment_id, "kill", "Killed")


@app.command("archive")
def archive(experiment_id: ExperimentId) -> None:
    """Hide an experiment that ended from lists."""
    _do(experiment_id, "archive", "Archived")


@app.command("unarchive")
def unarchive(experiment_id: ExperimentId) -> None:
    """Show an archived experiment in lists again."""
    _do(experiment_id, "unarchive", "Unarchived")


@app.command("delete")
def delete(experiment_id: ExperimentId, yes: Yes = False) -> None:
    """Delete an experiment that ended, with its checkpoints and logs."""
    from determined.experimental import Experiment

    render.confirm(f"Delete experiment {experiment_id} with all its checkpoints and logs, for good?", yes)
    Experiment(experiment_id, session.get()).delete()
    render.say(f"Deletion of experiment {experiment_id} has begun")


@label_app.command("add")
def add_label(experiment_id: ExperimentId, label: str) -> None:
    """Add a label."""
    from determined.experimental import Experiment

    Experiment(experiment_id, session.get()).add_label(label)
    render.say(f"Added label '{label}' to experiment {experiment_id}")


@label_app.command("remove")
def remove_label(experiment_id: ExperimentId, label: str) -> None:
    """Remove a label."""
    from determined.experimental import Experiment

    Experiment(experiment_id, session.get()).remove_label(label)
    render.say(f"Removed label '{label}' from experiment {experiment_id}")


@set_app.command("name")
def set_name(experiment_id: ExperimentId, name: str) -> None:
    """Change the name."""
    from determined.experimental import Experiment

    Experiment(experiment_id, session.get()).set_name(name)
    render.say(f"Set name of experiment {experiment_id} to '{name}'")


@set_app.command("description")
def set_description(experiment_id: ExperimentId, description: str) -> None:
    """Change the description."""
    from determined.experimental import Experiment

    Experiment(experiment_id, session.get()).set_description(description)
    render.say(f"Set description of experiment {experiment_id} to '{description}'")


def _do(experiment_id: int, verb: str, done: str) -> None:
    from determined.experimental import Experiment

    getattr(Experiment(experiment_id, session.get()), verb)()
    render.say(f"{done} experiment {experiment_id}")


def _number(word: str) -> int:
    if not word.strip().isdigit():
        raise ValueError(f"experiment {word.strip()!r}: expected numbers with commas between them, such as 3,4")
    return int(word)
