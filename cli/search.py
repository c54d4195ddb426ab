"""`det experiment rungs`, `why`, `replay`, `fork`, `edit` and `plot`: a search is data that can be looked into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import history, render, session
from cli.options import ExperimentId, Json, lists
from cli.render import Form

if TYPE_CHECKING:
    from workflows.searchers import Decision, Search
    from workflows.searchers.replay import Export
    from workflows.searchers.standings import Standing

Target = Annotated[
    str,
    typer.Argument(metavar="EXPERIMENT_ID|FILE", help="The experiment, or an exported search.", show_default=False),
]
ENDED = ("COMPLETED", "CANCELED", "ERROR")


@lists
def rungs(
    form: Form,
    target: Target,
    every: Annotated[bool, typer.Option("--all", "-a", help="Each trial of each rung.")] = False,
) -> None:
    """Show brackets and rungs: the rank of each trial, the promoted ones, and the thresholds."""
    export = history.load(target)
    views = _replayed(export).rungs()
    if not views:
        name = render.part(export.header.config, "searcher").get("name")
        has_rounds = "no rungs" if name != "pbt" else "no round that is over yet"
        number = export.header.experiment_id
        raise ValueError(f"the searcher {name!r} of experiment {number} has {has_rounds}; see `det e why {target}`")
    from workflows.searchers.standings import Comparisons, Standing

    comparisons = Comparisons(export.decisions)
    standings = [Standing(view, comparisons) for view in views]
    raw = [standing.as_json(export.header.trials) for standing in standings]
    names = history.names(export)
    if every:
        headers = ["Bracket", "Rung", "Length", "Place", "Trial", history.metric(export), "Outcome"]
        rows = [row for standing in standings for row in _rows(standing, names)]
    else:
        headers = ["Bracket", "Rung", "Length", "Results", "Went On", "Threshold", "Best", history.metric(export)]
        rows = [_summary(standing, names) for standing in standings]
    render.listing(headers, rows, form, raw=raw)


def why(target: Target, as_json: Json = False) -> None:
    """Tell what an experiment waits for, how it ended, and what its search decided last and why."""
    from workflows.searchers.explain import explain_search

    export = history.load(target)
    names = history.names(export)
    lines = explain_search(export.decisions, lambda other: names.get(other, other), metric=history.metric(export))
    if target.isdecimal():
        _say_why(session.fetch(f"undeterred/experiments/{target}/why"), _still_true(lines, export), as_json)
    else:
        _say_why({}, [*_state_of(export), *_still_true(lines, export)], as_json)


@lists
def replay(
    form: Form,
    target: Target,
    verify: Annotated[
        bool, typer.Option("--verify", help="Derive every decision again and compare it byte for byte.")
    ] = False,
    export_to: Annotated[
        Path | None, typer.Option("--export", help="Write a file that replays without a cluster.", show_default=False)
    ] = None,
) -> None:
    """Print the decisions of a search in order, verify them, or export them to a file.

    Exit code 1 if a decision is not what its event leads to.
    """
    from workflows.searchers.replay import dump_lines
    from workflows.searchers.replay import replay as derive_all

    if form.is_for_programs and (verify or export_to is not None):
        raise ValueError("--json, --yaml and --csv print the decisions; they go with neither --verify nor --export.")
    export = history.load(target)
    if export_to is not None:
        lines = "".join(f"{line}\n" for line in dump_lines(export.header, export.decisions))
        try:
            export_to.write_text(lines, encoding="utf-8", newline="\n")
        except OSError as error:
            raise ValueError(f"--export: {str(export_to)!r} can't be written: {error.strerror}") from None
        render.say(f"Wrote {_count(export)} to {export_to}")
    if verify:
        search = history.new_search(export)
        difference = derive_all(search, export.decisions)
        if difference is not None:
            render.say(str(difference))
            raise typer.Exit(1)
        if export.header.state == "COMPLETED" and search.shutdown is None:
            render.say(f"the record ends after {_count(export)}, before the search was over: it is not complete")
            raise typer.Exit(1)
        render.say(f"verified {_count(export)}: each is what its event leads to, byte for byte")
    if not verify and export_to is None:
        _print_decisions(export, form)


def fork(
    experiment_id: ExperimentId,
    at: Annotated[
        int | None, typer.Option("--at", min=1, help="The last decision to share (default: the last one).")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", help="What is to be different: key.sub=value.")
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config-file", help="Another configuration.", show_default=False)
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Do not start it.")] = False,
) -> None:
    """Create an experiment that shares another one's history up to a decision.

    What was trained until then is not trained again. Prints `Created experiment N`.
    """
    from cli.create import override_config, read_config
    from determined.common.experimental._wire import new_key, warnings_of

    body: dict[str, Any] = {"activate": not paused} | ({} if at is None else {"at": at})
    if config_file is not None:
        body["config"] = read_config(config_file, config or [])
    elif config:
        text = session.fetch(f"experiments/{experiment_id}")["experiment"]["originalConfig"]
        body["config"] = override_config(text, config, f"the configuration of experiment {experiment_id}")
    path = f"/api/v1/experiments/{experiment_id}/fork"
    answer: dict[str, Any] = session.get().post(path, body, idempotency_key=new_key()).json()
    for warning in warnings_of(answer):
        render.note(f"warning: {warning}")
    render.say(f"Created experiment {answer['experiment']['id']}")


def edit(
    experiment_id: ExperimentId,
    max_trials: Annotated[int | None, typer.Option("--max-trials", min=1, help="More trials than before.")] = None,
    max_concurrent_trials: Annotated[
        int | None, typer.Option("--max-concurrent-trials", min=0, help="More of them at a time; 0 is all.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", min=1, help="A longer training, in the searcher's unit.")
    ] = None,
    hyperparameters: Annotated[
        Path | None,
        typer.Option(
            "--hyperparameters",
            help="A narrower search space, complete: a YAML file, or a configuration with it.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what the search would do from now on, with it and without.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Change a search while it runs. What it decided so far stays."""
    given: dict[str, Any] = {
        "maxTrials": max_trials,
        "maxConcurrentTrials": max_concurrent_trials,
        "maxLength": max_length,
        "hyperparameters": None if hyperparameters is None else _space(hyperparameters),
    }
    body = {key: value for key, value in given.items() if value is not None}
    if not body:
        raise ValueError(
            "nothing to change: give --max-trials, --max-concurrent-trials, --max-length or --hyperparameters."
        )
    if dry_run:
        path = f"/api/v1/undeterred/experiments/{experiment_id}/search/preview-amend"
        _show_forecasts(session.get().post(path, body).json(), as_json)
        return
    session.get().post(f"/api/v1/experiments/{experiment_id}/search/amend", body)
    render.say(f"Edited experiment {experiment_id}")


def _show_forecasts(found: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        render.json_out(found)
        return
    without, changed = found["without"], found["changed"]
    shown = {
        "trials in the end": "trials",
        "trials still to be created": "newTrials",
        "promotions": "promotions",
        f"{found['unit']} still to train": "units",
        "trials at a time": "atOnce",
        "slot hours": "slotHours",
        "hours, if every trial gets its slots at once": "hours",
    }
    rows: list[render.Row] = [[title, _number(without[key]), _number(changed[key])] for title, key in shown.items()]
    before = {(rung["bracket"], rung["rung"]): rung for rung in without["rungs"]}
    for rung in changed["rungs"]:
        now = before.get((rung["bracket"], rung["rung"]), {"compared": 0, "promoted": 0})
        title = f"bracket {rung['bracket']}, compared at {rung['length']}"
        rows.append([title, *(f"{each['compared']}, {each['promoted']} go on" for each in (now, rung))])
    render.table(["From now on", "As it is", "Changed"], rows)
    render.note("Simulated: trials without a result are taken to do as well as those that have one.")
    if not changed["isWhole"]:
        render.note("The search is too large to be followed to its end: there is more to come.")


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def plot(
    experiment_id: ExperimentId,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture: .png, .svg or .pdf.")] = Path(
        "search.png"
    ),
) -> None:
    """Draw a search: learning curves coloured by rung, and each hyperparameter against the metric."""
    from cli.plot import draw

    draw(experiment_id, output)
    render.say(str(output))


def trial_why(trial_id: int, as_json: bool) -> None:
    """Tell what a trial waits for, how its runs ended and what comes next; then what the search decided about it."""
    from workflows.searchers.explain import explain_trial

    known = session.fetch(f"undeterred/trials/{trial_id}/why")
    experiment_id = int(known["facts"]["experimentId"])
    export = history.load(str(experiment_id))
    names = history.names(export)
    request_id = next((key for key, number in export.header.trials.items() if number == trial_id), None)
    if request_id is None:
        raise ValueError(f"trial {trial_id} is not part of the recorded search of experiment {experiment_id}.")
    lines = explain_trial(
        export.decisions, request_id, lambda other: names.get(other, other), metric=history.metric(export)
    )
    _say_why(known, lines or [f"nothing has been decided about trial {trial_id} yet"], as_json)


COMMANDS = (rungs, why, replay, fork, edit, plot)


def _summary(standing: Standing, names: Mapping[str, str]) -> list[Any]:
    from workflows.searchers.standings import word

    view = standing.view
    best = view.entries[0] if view.entries else None
    row: list[Any] = [view.bracket, view.rung, view.length, len(view.entries), standing.went_on]
    return [*row, word(standing.threshold), best and names.get(best[0], best[0]), best and word(best[1])]


def _rows(standing: Standing, names: Mapping[str, str]) -> Iterator[list[Any]]:
    from workflows.searchers.standings import word

    view = standing.view
    for place, (request_id, metric, _) in enumerate(view.entries, 1):
        outcome = (standing.outcome(request_id) or "").replace("_", " ")
        name = names.get(request_id, request_id)
        yield [view.bracket, view.rung, view.length, place, name, word(metric), outcome]


def _replayed(export: Export) -> Search:
    from workflows.searchers.replay import carried_on

    return carried_on(history.new_search(export), export.decisions)


def _state_of(export: Export) -> list[str]:
    """What the decisions do not tell: that the experiment was paused, or ended before its search was over."""
    header = export.header
    is_over = any(action.kind == "shutdown" for decision in export.decisions for action in decision.actions)
    if is_over or header.state not in (*ENDED, "PAUSED"):
        return []
    return [f"experiment {header.experiment_id} is {header.state}"]


def _still_true(lines: list[str], export: Export) -> list[str]:
    """Without what the search waited for when its experiment was ended: nothing comes any more."""
    return [line for line in lines if not (line.startswith("waits for ") and export.header.state in ENDED)]


def _say_why(known: Mapping[str, Any], search: list[str], as_json: bool) -> None:
    """What the cluster knows (empty for a file), and what the search decided."""
    sentences: list[str] = known.get("sentences") or []
    if as_json:
        render.json_out({"sentences": sentences, "facts": known.get("facts"), "search": search})
        return
    for line in [*sentences, *search]:
        render.say(line)


def _count(export: Export) -> str:
    number = len(export.decisions)
    return f"{number} decision{'s' * (number != 1)}"


def _print_decisions(export: Export, form: Form) -> None:
    from workflows.searchers.standings import about, action_words, event_words, reported

    names = history.names(export)
    metric = history.metric(export)
    rows: list[list[Any]] = []
    for decision in export.decisions:
        trial = about(decision.event)
        rows.append(
            [
                decision.number,
                event_words(decision.event),
                trial and names.get(trial, trial),
                reported(decision.event, metric),
                decision.error or action_words(decision, lambda other: names.get(other, other)) or "-",
            ]
        )
    if not rows and not form.is_for_programs:
        render.say("nothing has been decided yet")
        return
    raw = [_as_json(decision) for decision in export.decisions]
    render.listing(["Decision", "Event", "Trial", metric, "Actions"], rows, form, raw=raw)


def _as_json(decision: Decision) -> Any:
    import json

    return json.loads(decision.canonical())


def _space(path: Path) -> dict[str, Any]:
    from cli.create import read_config
    from workflows.config import ConfigError
    from workflows.config.yamltext import parse_text

    try:
        space: Any = parse_text(read_config(path, [])).value
    except ConfigError as error:
        raise ValueError(f"{path}: {error}") from None
    if isinstance(space, dict) and "hyperparameters" in space and (len(space) == 1 or "searcher" in space):  # pyright: ignore[reportUnknownArgumentType]
        space = space["hyperparameters"]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(space, dict):
        raise ValueError(f"{path}: expected a map of hyperparameters, as in a configuration, but found {space!r}")
    return space  # pyright: ignore[reportUnknownVariableType]
