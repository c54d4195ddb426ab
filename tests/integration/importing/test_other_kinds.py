"""What the dump has no rows of: groups, roles, templates, policies, webhooks, versions, warm starts."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from database.models import (
    Base,
    ConfigPolicy,
    Experiment,
    Group,
    GroupMember,
    ModelVersion,
    RoleAssignment,
    Template,
    Trial,
    TrialSource,
    Webhook,
    WebhookTrigger,
)
from database.session import Database
from tests.kit.old_cluster import Old, imported
from workflows.lifecycle.imports import ImportMode

#: A checkpoint of trial 1 of the dump.
CHECKPOINT = "20e0fd1f-2d04-4fa5-af6e-fa028aca056b"
ROWS = (
    "INSERT INTO groups (id, group_name) VALUES (40, 'vision'), (41, 'empty')",
    "INSERT INTO user_group_membership (user_id, group_id) VALUES (2, 40), (3, 40)",
    "INSERT INTO role_assignment_scopes (id, scope_workspace_id) VALUES (900, 1), (901, NULL)",
    # Editor in a workspace, to a group; Viewer everywhere, to a user; and what has no counterpart here
    "INSERT INTO role_assignments (group_id, role_id, scope_id) VALUES (40, 5, 900), (2, 4, 901), (40, 1, 901)",
    "INSERT INTO templates (name, config, workspace_id) VALUES ('gpu', '{\"resources\": {\"slots_per_trial\": 2}}', 1)",
    "INSERT INTO task_config_policies (workspace_id, workload_type, last_updated_by, invariant_config, constraints) VALUES"
    " (NULL, 'EXPERIMENT', 1, NULL, '{\"resources\": {\"max_slots\": 8}}'),"
    " (1, 'NTSC', 1, '{\"description\": \"d\"}', NULL)",
    "INSERT INTO webhooks (id, url, webhook_type, workspace_id, name, mode) VALUES"
    " (7, 'https://hooks.example.org/a', 'DEFAULT', 1, 'ours', 'WORKSPACE'),"
    " (8, 'https://hooks.example.org/b', 'SLACK', NULL, 'all', 'SPECIFIC')",
    "INSERT INTO webhook_triggers (id, trigger_type, condition, webhook_id) VALUES"
    " (1, 'EXPERIMENT_STATE_CHANGE', '{\"state\": \"COMPLETED\"}', 7), (2, 'TASK_LOG', '{\"regex\": \"oom\"}', 7),"
    " (3, 'CUSTOM', '{}', 8)",
    "INSERT INTO model_versions (id, version, checkpoint_uuid, creation_time, model_id, name, comment, user_id, labels,"
    f" metadata) VALUES (5, 3, '{CHECKPOINT}', now(), 1, 'best', 'c', 3, ARRAY['a', 'b'], '{{\"k\": 1}}')",
    "INSERT INTO trial_source_infos (trial_id, checkpoint_uuid, model_id, model_version, trial_source_info_type) VALUES"
    f" (2, '{CHECKPOINT}', 1, 3, 'TRIAL_SOURCE_INFO_TYPE_FINE_TUNING')",
    "UPDATE experiments SET config = jsonb_set(config, '{searcher,source_trial_id}', '1') WHERE id = 2",
    "UPDATE runs SET warm_start_checkpoint_id = (SELECT id FROM checkpoints_v2 WHERE uuid ="
    f" '{CHECKPOINT}') WHERE experiment_id = 2",
)  # fmt: skip


def rows(database: Database, model: type[Base]) -> list[Any]:
    with database.read() as session:
        return list(session.scalars(select(model)))


def _taken(target: Database) -> None:
    """An experiment of this cluster with one trial: what comes gets other numbers."""
    with target.write() as session:
        mine = Experiment(
            id=1, job_id="mine", name="mine", state="COMPLETED", config={}, original_config="", searcher_name="single",
            searcher_metric="loss", resource_pool="default", owner_id=1, project_id=1,
        )  # fmt: skip
        session.add(mine)
        session.flush()
        session.add(Trial(id=1, experiment_id=1, request_id="r", task_id="t", seed=0, hparams={}, state="COMPLETED"))


def test_kinds_that_the_dump_lacks_come_too(target: Database, old: Old) -> None:
    shift = not target.is_sqlite  # one with each engine
    old.run(*ROWS)
    if shift:
        _taken(target)
    done = imported(target, old.url, shift=shift)
    moved = {}
    with target.read() as session:
        experiment = session.scalars(select(Experiment).where(Experiment.source_checkpoint == CHECKPOINT)).one()
        trial = session.scalars(select(Trial).where(Trial.experiment_id == experiment.id)).one()
        moved = {"experiments": experiment.id - 2, "trials": trial.id - 2}
    assert (set(moved.values()) == {0}) is not shift
    assert experiment.config["searcher"]["source_trial_id"] == 1 + moved["trials"]
    assert trial.warm_start_checkpoint == CHECKPOINT

    groups = {group.name: group.id for group in rows(target, Group)}
    assert groups.keys() == {"vision", "empty"}
    members = [row.user_id for row in rows(target, GroupMember) if row.group_id == groups["vision"]]
    assert (len(members), done["groups"].written) == (2, 2)
    roles = rows(target, RoleAssignment)
    assert any(row.group_id == groups["vision"] and row.workspace_id is not None for row in roles)
    assert any(row.user_id in members and row.workspace_id is None for row in roles)
    assert any("ClusterAdmin" in reason for reason in done["roles"].skipped)
    [template] = rows(target, Template)
    assert (template.name, template.config) == ("gpu", {"resources": {"slots_per_trial": 2}})
    policies = {(row.workspace_id is None, row.workload): row.content for row in rows(target, ConfigPolicy)}
    assert policies == {
        (True, "EXPERIMENT"): {"constraints": {"resources": {"max_slots": 8}}},
        (False, "NTSC"): {"invariant_config": {"description": "d"}},
    }
    hooks = {row.name: row for row in rows(target, Webhook)}
    assert [(hooks[name].url[-1], hooks[name].kind, hooks[name].mode) for name in ("ours", "all")] == [
        ("a", "DEFAULT", "WORKSPACE"), ("b", "SLACK", "SPECIFIC")
    ]  # fmt: skip
    triggers = [(row.webhook_id - hooks["ours"].id, row.kind, row.condition) for row in rows(target, WebhookTrigger)]
    assert sorted(triggers, key=str) == [
        (0, "EXPERIMENT_STATE_CHANGE", {"state": "COMPLETED"}), (0, "TASK_LOG", {"regex": "oom"}), (1, "CUSTOM", {})
    ]  # fmt: skip
    [version] = rows(target, ModelVersion)
    assert (version.version, version.checkpoint_uuid, version.name, version.labels) == (
        3,
        CHECKPOINT,
        "best",
        ["a", "b"],
    )
    [source] = rows(target, TrialSource)
    assert (source.trial_id, source.kind, source.model_version) == (2 + moved["trials"], "FINE_TUNING", 3)

    kinds = (
        "groups",
        "roles",
        "templates",
        "config policies",
        "webhooks",
        "model versions",
        "trial sources",
        "experiments",
    )
    again = imported(target, old.url, shift=shift)
    assert {kind: again[kind].written for kind in again if kind in kinds} == dict.fromkeys(
        [kind for kind in again if kind in kinds], 0
    )
    compared = imported(target, old.url, ImportMode.VERIFY, shift=shift)
    assert {kind: row.differing for kind, row in compared.items() if row.differing} == {}
