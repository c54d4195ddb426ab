"""The SDK's documented surface: every class, method, parameter, enumeration and default."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from determined import errors
from determined.common.api import errors as api_errors
from determined.experimental import aio, client

# "name(parameter=default, …)", defaults as `repr`; enumerations by name.
FUNCTIONS = """
login(master=None, user=None, password=None, cert_path=None, cert_name=None, noverify=False)
create_experiment(config, model_dir=None, includes=None, project_id=None, template=None)
get_experiment(experiment_id)
list_experiments(sort_by=None, order_by=None, experiment_ids=None, labels=None, users=None, states=None, name=None, \
project_id=None)
get_trial(trial_id)
get_checkpoint(uuid)
create_model(name, description='', metadata=None)
get_model(identifier)
get_model_by_id(model_id)
get_models(sort_by=ModelSortBy.NAME, order_by=OrderBy.ASCENDING, name='', description='')
list_models(sort_by=ModelSortBy.NAME, order_by=OrderBy.ASCENDING, name=None, description=None, model_id=None, \
workspace_names=None, workspace_ids=None)
get_model_labels()
get_workspace(name)
list_workspaces()
create_workspace(name)
delete_workspace(name)
create_user(username, admin, password=None, remote=False)
get_user_by_id(user_id)
get_user_by_name(user_name)
get_session_username()
whoami()
logout()
list_users(active=None)
list_oauth_clients()
add_oauth_client(domain, name)
remove_oauth_client(client_id)
stream_trials_metrics(trial_ids, group)
iter_trials_metrics(trial_ids, group)
stream_trials_training_metrics(trial_ids)
stream_trials_validation_metrics(trial_ids)
"""

METHODS = {
    "Determined": """
__init__(master=None, user=None, password=None, cert_path=None, cert_name=None, noverify=False)
create_model(name, description='', metadata=None, labels=None, workspace_name=None)
get_models(sort_by=ModelSortBy.NAME, order_by=OrderBy.ASCENDING, name=None, description=None, model_id=None, \
workspace_names=None, workspace_ids=None)
""",
    "Experiment": """
__init__(experiment_id, session)
activate()
archive()
cancel()
delete()
get_config()
get_trials(sort_by=TrialSortBy.ID, order_by=OrderBy.ASCENDING)
list_trials(sort_by=TrialSortBy.ID, order_by=OrderBy.ASCENDING)
iter_trials(sort_by=TrialSortBy.ID, order_by=OrderBy.ASCENDING, limit=None)
await_first_trial(interval=0.1)
kill()
pause()
unarchive()
wait(interval=5.0)
top_checkpoint(sort_by=None, smaller_is_better=None)
top_n_checkpoints(limit, sort_by=None, smaller_is_better=None)
list_checkpoints(sort_by=None, order_by=None, max_results=None)
reload()
set_name(name)
set_description(description)
set_notes(notes)
add_label(label)
remove_label(label)
set_labels(labels)
download_code(output_dir=None)
move_to_project(workspace_name, project_name)
delete_tensorboard_files()
get_pachyderm_config()
""",
    "Trial": """
__init__(trial_id, session)
logs(follow=False, head=None, tail=None, container_ids=None, rank_ids=None, stdtypes=None, min_level=None, \
timestamp_before=None, timestamp_after=None, sources=None, search_text=None)
iter_logs(follow=False, head=None, tail=None, container_ids=None, rank_ids=None, stdtypes=None, min_level=None, \
timestamp_before=None, timestamp_after=None, sources=None, search_text=None)
kill()
top_checkpoint(sort_by=None, smaller_is_better=None)
select_checkpoint(latest=False, best=False, uuid=None, sort_by=None, smaller_is_better=None)
get_checkpoints(sort_by=None, order_by=None)
list_checkpoints(sort_by=None, order_by=None, max_results=None)
stream_metrics(group)
iter_metrics(group)
stream_training_metrics()
stream_validation_metrics()
reload()
get_experiment()
""",
    "Checkpoint": """
__init__(session, task_id=None, allocation_id=None, uuid='', report_time=None, resources=None, metadata=None, \
state=CheckpointState.UNSPECIFIED, training=None)
download(path=None, mode=DownloadMode.AUTO, progress=None)
write_metadata_file(path)
add_metadata(metadata)
remove_metadata(keys)
delete()
remove_files(globs)
get_metrics(group=None)
get_pachyderm_commit()
reload()
""",
    "Model": """
__init__(session, model_id=0, name='', description='', creation_time=None, last_updated_time=None, metadata=None, \
labels=None, username='', archived=False, workspace_id=None)
get_version(version=-1)
get_versions(order_by=OrderBy.DESCENDING)
list_versions(order_by=OrderBy.DESCENDING)
register_version(checkpoint_uuid)
add_metadata(metadata)
remove_metadata(keys)
move_to_workspace(workspace_name)
set_labels(labels)
set_description(description)
archive()
unarchive()
delete()
to_json()
reload()
""",
    "ModelVersion": """
set_name(name)
set_notes(notes)
delete()
get_metrics(group=None)
iter_metrics(group=None)
reload()
""",
    "User": """
__init__(user_id, session)
rename(new_username)
activate()
deactivate()
change_display_name(display_name)
change_password(new_password)
link_with_agent(agent_uid=None, agent_gid=None, agent_user=None, agent_group=None)
reload()
""",
    "Workspace": """
__init__(session, workspace_id=None, workspace_name=None)
reload()
list_pools()
create_project(name, description=None)
delete_project(name)
get_project(project_name)
list_projects()
""",
    "Project": """
__init__(session, project_id)
reload()
list_experiments()
set_description(description)
set_key(key)
set_name(name)
archive()
unarchive()
add_note(name, contents)
remove_note(name)
""",
    "ResourcePool": """
__init__(session, name='')
add_bindings(workspace_names)
remove_bindings(workspace_names)
list_workspaces()
replace_bindings(workspace_names)
""",
}

MEMBERS = {
    "CheckpointState": "UNSPECIFIED ACTIVE COMPLETED ERROR DELETED PARTIALLY_DELETED",
    "CheckpointSortBy": "UUID TRIAL_ID BATCH_NUMBER END_TIME STATE SEARCHER_METRIC",
    "CheckpointOrderBy": "ASC DESC",
    "DownloadMode": "DIRECT MASTER AUTO",
    "ExperimentState": "UNSPECIFIED ACTIVE PAUSED STOPPING_COMPLETED STOPPING_CANCELED STOPPING_ERROR COMPLETED "
    "CANCELED ERROR DELETED DELETING DELETE_FAILED STOPPING_KILLED QUEUED PULLING STARTING RUNNING",
    "ExperimentSortBy": "ID DESCRIPTION START_TIME END_TIME STATE NUM_TRIALS PROGRESS USER NAME FORKED_FROM "
    "RESOURCE_POOL PROJECT_ID CHECKPOINT_SIZE CHECKPOINT_COUNT SEARCHER_METRIC_VAL",
    "ExperimentOrderBy": "ASCENDING DESCENDING",
    "LogLevel": "TRACE DEBUG INFO WARNING ERROR CRITICAL",
    "ModelSortBy": "UNSPECIFIED NAME DESCRIPTION CREATION_TIME LAST_UPDATED_TIME NUM_VERSIONS WORKSPACE",
    "ModelOrderBy": "ASCENDING ASC DESCENDING DESC",
    "OrderBy": "ASCENDING ASC DESCENDING DESC",
    "TrialSortBy": "UNSPECIFIED ID START_TIME END_TIME STATE BEST_VALIDATION_METRIC LATEST_VALIDATION_METRIC "
    "BATCHES_PROCESSED DURATION RESTARTS CHECKPOINT_SIZE LOG_RETENTION_DAYS",
    "TrialOrderBy": "ASCENDING ASC DESCENDING DESC",
    "TrialState": "ACTIVE PAUSED STOPPING_CANCELED STOPPING_KILLED STOPPING_COMPLETED STOPPING_ERROR CANCELED "
    "COMPLETED ERROR QUEUED PULLING STARTING RUNNING",
}


def spelled(name: str, function: Any) -> str:
    """A signature as the tables above write it."""
    words: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        default = parameter.default
        if default is parameter.empty:
            words.append(parameter.name)
        else:
            words.append(f"{parameter.name}={default if hasattr(default, 'value') else repr(default)}")
    return f"{name}({', '.join(words)})"


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


@pytest.mark.parametrize("wanted", lines_of(FUNCTIONS))
def test_every_function_is_there_with_its_parameters(wanted: str) -> None:
    name = wanted.partition("(")[0]
    assert spelled(name, getattr(client, name)) == wanted
    assert name in client.__all__
    if name != "login":
        assert hasattr(client.Determined, name), "an explicit object offers the same"
        assert hasattr(aio.AsyncDetermined, name)


@pytest.mark.parametrize(
    ("kind", "wanted"), [(kind, wanted) for kind, text in METHODS.items() for wanted in lines_of(text)]
)
def test_every_method_is_there_with_its_parameters(kind: str, wanted: str) -> None:
    name = wanted.partition("(")[0]
    assert spelled(name, getattr(getattr(client, kind), name)) == wanted
    if kind != "Determined":
        assert spelled(name, getattr(getattr(aio, f"Async{kind}"), name)) == wanted


@pytest.mark.parametrize(("kind", "wanted"), MEMBERS.items())
def test_every_enumeration_has_its_members(kind: str, wanted: str) -> None:
    assert set(wanted.split()) <= set(getattr(client, kind).__members__)


def test_older_names_are_the_same_objects() -> None:
    assert client.ExperimentReference is client.Experiment
    assert client.TrialReference is client.Trial
    from determined.common.experimental.checkpoint import DownloadMode
    from determined.common.experimental.model import ModelOrderBy, ModelSortBy

    assert (DownloadMode, ModelOrderBy, ModelSortBy) == (client.DownloadMode, client.ModelOrderBy, client.ModelSortBy)


def test_errors_of_the_api_are_in_their_module() -> None:
    for name in (
        "NotFoundException",
        "ForbiddenException",
        "UnauthenticatedException",
        "APIException",
        "MasterNotFoundException",
    ):
        assert getattr(api_errors, name) is getattr(errors, name)
