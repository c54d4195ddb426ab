"""A tour of the published SDK: `python sdk.py <master> <password> <config.json> <model folder> <scratch folder>`."""

import contextlib
import json
import pathlib
import sys

from steps import same, step

from determined.common.experimental.checkpoint import DownloadMode
from determined.experimental import client

master, password, config_path, model_folder, scratch = sys.argv[1:]
config = json.loads(pathlib.Path(config_path).read_text())
scratch = pathlib.Path(scratch)
is_new = hasattr(client, "list_experiments")


@step("login, whoami")
def _():
    client.login(master=master, user="admin", password=password)
    same(client.get_session_username(), "admin")
    same(client.whoami().username, "admin")


@step("create_experiment, wait")
def experiment():
    made = client.create_experiment(config, model_folder)
    same(made.wait(interval=0.2).name, "COMPLETED")
    return client.get_experiment(made.id)


@step("trials of an experiment")
def trial():
    (only,) = experiment.get_trials()
    same(client.get_trial(only.id).id, only.id)
    if is_new:
        same([found.id for found in experiment.list_trials()], [only.id])
        same(only.get_experiment().id, experiment.id)
        same(only.hparams, {"sleep": 0})
    same(experiment.await_first_trial().id, only.id)
    return only


@step("checkpoints of a trial")
def _():
    steps = [checkpoint.metadata["steps_completed"] for checkpoint in trial.get_checkpoints()]
    same(sorted(steps), [4, 6])
    same(trial.select_checkpoint(latest=True).metadata["steps_completed"], 6)
    same(trial.select_checkpoint(best=True, sort_by="accuracy", smaller_is_better=False).metadata["steps_completed"], 6)
    same(trial.top_checkpoint().metadata["steps_completed"], 6)


@step("checkpoints of an experiment")
def checkpoint():
    (best,) = experiment.top_n_checkpoints(2)  # the best of each trial
    same(best.metadata["steps_completed"], 6)
    same(experiment.top_checkpoint().uuid, best.uuid)
    worst = experiment.top_checkpoint(sort_by="accuracy", smaller_is_better=True)
    same(worst.metadata["steps_completed"], 4)
    if is_new:
        same(len(experiment.list_checkpoints(max_results=1)), 1)
    return client.get_checkpoint(best.uuid)


@step("what a checkpoint knows")
def _():
    same(checkpoint.training.experiment_id, experiment.id)
    same(checkpoint.training.trial_id, trial.id)
    same(checkpoint.training.validation_metrics["avgMetrics"]["accuracy"], 0.75)
    same(checkpoint.training.experiment_config["name"], config["name"])
    same("state.json" in checkpoint.resources, True)
    same(checkpoint.state.name, "COMPLETED")


@step("Checkpoint.download")
def _():
    for mode in DownloadMode:
        path = checkpoint.download(str(scratch / mode.value), mode=mode)
        same(json.loads((pathlib.Path(path) / "state.json").read_text()), {"steps": 6})


@step("Checkpoint metadata")
def _():
    checkpoint.add_metadata({"owner": "me"})
    same(client.get_checkpoint(checkpoint.uuid).metadata["owner"], "me")
    checkpoint.remove_metadata(["owner"])
    same("owner" in client.get_checkpoint(checkpoint.uuid).metadata, False)


@step("Trial.logs")
def _():
    lines = list(trial.logs())
    same(any("step 6" in line for line in lines), True)
    same(len(list(trial.logs(tail=2))), 2)
    same(len(list(trial.logs(head=3))), 3)
    same(list(trial.logs(follow=True))[-1], lines[-1])


if is_new:

    @step("metrics")
    def _():
        same([metric.steps_completed for metric in trial.iter_metrics("validation")], [1, 2, 3, 4, 5, 6])
        found = list(client.iter_trials_metrics([trial.id], "training"))
        same(found[0].metrics["loss"], 1.0)
        same(len(list(client.stream_trials_training_metrics([trial.id]))), 6)
        same(len(list(client.stream_trials_validation_metrics([trial.id]))), 6)
        same(trial.summary_metrics["validation_metrics"]["accuracy"]["max"], 0.75)

    @step("Checkpoint.get_metrics")
    def _():
        list(checkpoint.get_metrics())

    @step("list_experiments")
    def _():
        same(experiment.id in [found.id for found in client.list_experiments(name=config["name"])], True)
        states = [client.ExperimentState.COMPLETED]
        same([e.id for e in client.list_experiments(experiment_ids=[experiment.id], states=states)], [experiment.id])

    @step("Experiment: name, description, labels, notes, code")
    def _():
        experiment.set_name("toured")
        experiment.set_description("by the SDK")
        experiment.set_notes("fine")
        experiment.add_label("one")
        experiment.add_label("two")
        experiment.remove_label("one")
        experiment.reload()
        same((experiment.name, experiment.description, set(experiment.labels)), ("toured", "by the SDK", {"two"}))
        experiment.set_labels({"three"})
        experiment.reload()
        same((set(experiment.labels), experiment.notes), ({"three"}, "fine"))
        same(pathlib.Path(experiment.download_code(str(scratch))).exists(), True)

    @step("workspaces and projects")
    def _():
        workspace = client.create_workspace("toured")
        project = workspace.create_project("first", "the first one")
        same([found.name for found in workspace.list_projects()], ["first"])
        same("toured" in [found.name for found in client.list_workspaces()], True)
        project.set_name("renamed")
        project.set_description("still the first")
        project.set_key("TOUR")
        project.add_note("note", "text")
        project.reload()
        same((project.name, project.key, len(project.notes)), ("renamed", "TOUR", 1))
        project.remove_note("note")
        experiment.move_to_project("toured", "renamed")
        same([found.id for found in project.list_experiments()], [experiment.id])
        experiment.move_to_project("Uncategorized", "Uncategorized")
        project.archive()
        project.unarchive()
        (pool,) = [pool for pool in workspace.list_pools() if pool.name == "default"]
        same(pool.list_workspaces(), [])
        workspace.delete_project("renamed")
        client.delete_workspace("toured")

else:

    @step("Experiment.get_config")
    def _():
        same(experiment.get_config()["name"], config["name"])


@step("Experiment: pause, activate, cancel, archive")
def _():
    slow = dict(config, hyperparameters={"sleep": 0.2}, searcher=dict(config["searcher"], max_length=1000))
    other = client.create_experiment(slow, model_folder)
    other.await_first_trial()
    other.pause()
    other.activate()
    other.cancel()
    same(other.wait(interval=0.2).name, "CANCELED")
    other.archive()
    other.unarchive()
    other.delete()
    third = client.create_experiment(slow, model_folder)
    third.await_first_trial().kill()
    third.kill()
    same(third.wait(interval=0.2).name in ("CANCELED", "ERROR", "COMPLETED"), True)


@step("models")
def model():
    made = client.create_model("toured", "a description", {"from": "the tour"})
    made.set_description("another")
    made.add_metadata({"more": "1"})
    made.remove_metadata(["from"])
    made.set_labels(["x", "y"])
    found = client.get_model("toured")
    same((found.description, found.metadata, sorted(found.labels)), ("another", {"more": "1"}, ["x", "y"]))
    same(client.get_model_by_id(found.model_id).name, "toured")
    same("toured" in [each.name for each in client.get_models()], True)
    same({"x", "y"} <= set(client.get_model_labels()), True)
    made.archive()
    made.unarchive()
    return found


@step("versions of a model")
def _():
    version = model.register_version(checkpoint.uuid)
    same(version.checkpoint.uuid, checkpoint.uuid)
    same([each.checkpoint.uuid for each in model.get_versions()], [checkpoint.uuid])
    same(model.get_version().checkpoint.uuid, checkpoint.uuid)
    if hasattr(version, "set_name"):
        version.set_name("the best")
        version.set_notes("of one")
        version = model.get_version(version.model_version)
        same((version.name, version.notes), ("the best", "of one"))
    if is_new:
        list(version.iter_metrics())
    if hasattr(version, "delete"):
        version.delete()
        same(model.get_versions(), [])
    model.delete()


@step("users")
def _():
    user = client.create_user("toured", admin=False, password="Toured-Pass-1")
    user.rename("touring")
    user.change_display_name("Tou Ring")
    user.change_password("Toured-Pass-2")
    user.link_with_agent(agent_uid=7, agent_gid=7, agent_user="t", agent_group="t")
    user.deactivate()
    user.activate()
    found = client.get_user_by_name("touring")
    same((found.display_name, found.active), ("Tou Ring", True))
    same(client.get_user_by_id(found.user_id).username, "touring")
    same("touring" in [each.username for each in client.list_users()], True)


@step("what is deleted")
def _():
    if is_new:
        checkpoint.remove_files(["state.json"])
        experiment.delete_tensorboard_files()
    checkpoint.delete()
    experiment.delete()


@step("logout")
def _():
    client.logout()
    with contextlib.suppress(Exception):
        client.whoami()
        raise SystemExit("still logged in")
