"""The kinds of records that are one row each: how they are read, what becomes of them, by what they are found here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import LiteralString

from database.models import (
    Allocation,
    Base,
    Checkpoint,
    ConfigPolicy,
    Experiment,
    Group,
    Model,
    ModelVersion,
    Project,
    RoleAssignment,
    Template,
    Trial,
    TrialSource,
    User,
    UserToken,
    Webhook,
    Workspace,
)
from workers.importing import people, places, registry, work
from workers.importing.rows import Context, Record, Skipped
from workers.importing.source import Row
from workflows.lifecycle.imports import Kind


@dataclass(frozen=True)
class Table:
    """One kind of record.

    Attributes:
        kind: Which.
        model: What its rows become.
        query: Rows with their `key`, in its order, after `%(after)s`, at most `%(limit)s`.
        count: How many there are, as `n`.
        made: What becomes of a row.
        first: What comes before all keys.
        refs: Columns with the keys of experiments, trials or checkpoints: what a page refers to is looked up at once.
        by: Columns by which a record is found here; none: it is only ever added.
        page: Rows at once.
    """

    kind: Kind
    model: type[Base]
    query: LiteralString
    count: LiteralString
    made: Callable[[Row, Context], Record | Skipped]
    first: int | str = 0
    refs: Mapping[str, Kind] = field(default_factory=dict[str, Kind])
    by: tuple[str, ...] = ("id",)
    page: int = 500


_TASKS: LiteralString = (
    "(SELECT jsonb_agg(jsonb_build_object('id', t.task_id, 'start', t.start_time, 'end', t.end_time)"
    " ORDER BY t.start_time, t.task_id) FROM run_id_task_id x JOIN tasks t ON t.task_id = x.task_id"
    " WHERE x.run_id = r.id)"
)

TABLES = (
    Table(
        Kind.USERS,
        User,
        "SELECT u.id AS key, u.*, g.uid, g.user_, g.gid, g.group_ FROM users u"
        " LEFT JOIN agent_user_groups g ON g.user_id = u.id WHERE u.id > %(after)s ORDER BY u.id LIMIT %(limit)s",
        "SELECT count(*) AS n FROM users",
        people.user,
    ),
    Table(
        Kind.GROUPS,
        Group,
        "SELECT g.id AS key, g.*, (SELECT jsonb_agg(m.user_id ORDER BY m.user_id) FROM user_group_membership m"
        " WHERE m.group_id = g.id) AS members FROM groups g WHERE g.user_id IS NULL AND g.id > %(after)s"
        " ORDER BY g.id LIMIT %(limit)s",
        "SELECT count(*) AS n FROM groups WHERE user_id IS NULL",
        people.group,
    ),
    Table(
        Kind.WORKSPACES,
        Workspace,
        "SELECT w.id AS key, w.*, w.state::text AS state, (SELECT jsonb_agg(jsonb_build_object('user', p.user_id,"
        " 'at', p.created_at) ORDER BY p.user_id) FROM workspace_pins p WHERE p.workspace_id = w.id) AS pins"
        " FROM workspaces w WHERE w.id > %(after)s ORDER BY w.id LIMIT %(limit)s",
        "SELECT count(*) AS n FROM workspaces",
        places.workspace,
    ),
    Table(
        Kind.PROJECTS,
        Project,
        "SELECT p.*, p.key AS short_name, p.state::text AS state, p.id AS key FROM projects p WHERE p.id > %(after)s"
        " ORDER BY p.id LIMIT %(limit)s",
        "SELECT count(*) AS n FROM projects",
        places.project,
    ),
    Table(
        Kind.ROLES,
        RoleAssignment,
        "SELECT * FROM (SELECT concat_ws('.', a.group_id, a.role_id, a.scope_id) AS key, a.group_id, a.role_id,"
        " r.role_name, s.scope_workspace_id, g.user_id FROM role_assignments a JOIN roles r ON r.id = a.role_id"
        " JOIN role_assignment_scopes s ON s.id = a.scope_id JOIN groups g ON g.id = a.group_id) found"
        ' WHERE key COLLATE "C" > %(after)s ORDER BY key COLLATE "C" LIMIT %(limit)s',
        "SELECT count(*) AS n FROM role_assignments",
        people.role,
        first="",
        by=(),
    ),
    Table(
        Kind.TOKENS,
        UserToken,
        "SELECT id AS key, id, user_id, expiry, created_at, revoked_at, description FROM user_sessions"
        " WHERE token_type::text = 'ACCESS_TOKEN' AND id > %(after)s ORDER BY id LIMIT %(limit)s",
        "SELECT count(*) AS n FROM user_sessions WHERE token_type::text = 'ACCESS_TOKEN'",
        people.token,
        by=("token_hash",),
    ),
    Table(
        Kind.TEMPLATES,
        Template,
        'SELECT name AS key, * FROM templates WHERE name COLLATE "C" > %(after)s ORDER BY name COLLATE "C"'
        " LIMIT %(limit)s",
        "SELECT count(*) AS n FROM templates",
        places.template,
        first="",
        by=("name",),
    ),
    Table(
        Kind.POLICIES,
        ConfigPolicy,
        "SELECT * FROM (SELECT coalesce(workspace_id::text, 'all') || ' ' || workload_type::text AS key, workspace_id,"
        " workload_type::text AS workload_type, last_updated_by, last_updated_time, invariant_config, constraints"
        ' FROM task_config_policies) found WHERE key COLLATE "C" > %(after)s ORDER BY key COLLATE "C" LIMIT %(limit)s',
        "SELECT count(*) AS n FROM task_config_policies",
        places.policy,
        first="",
        by=("workspace_id", "workload"),
    ),
    Table(
        Kind.EXPERIMENTS,
        Experiment,
        "SELECT e.id AS key, e.id, e.state::text AS state, e.config, e.start_time, e.end_time, e.archived, e.parent_id,"
        " e.owner_id, e.progress, e.original_config, e.notes, e.job_id, e.project_id, e.unmanaged,"
        " e.external_experiment_id, length(e.model_definition) AS packed,"
        " (SELECT count(*) FROM runs r JOIN trials_v2 v ON v.run_id = r.id WHERE r.experiment_id = e.id) AS trials,"
        " (SELECT c.uuid::text FROM runs r JOIN checkpoints_v2 c ON c.id = r.warm_start_checkpoint_id"
        " WHERE r.experiment_id = e.id ORDER BY r.id LIMIT 1) AS warm_start,"
        " (SELECT max(coalesce(r.end_time, r.start_time)) FROM runs r WHERE r.experiment_id = e.id) AS last_end,"
        " (SELECT jsonb_agg(DISTINCT x.task_id ORDER BY x.task_id) FROM runs r JOIN run_id_task_id x ON x.run_id = r.id"
        " WHERE r.experiment_id = e.id) AS tasks"
        " FROM experiments e WHERE e.id > %(after)s ORDER BY e.id LIMIT %(limit)s",
        "SELECT count(*) AS n FROM experiments",
        work.experiment,
        refs={"parent_id": Kind.EXPERIMENTS},
        page=100,
    ),
    Table(
        Kind.TRIALS,
        Trial,
        "SELECT r.id AS key, r.id, r.experiment_id, r.state::text AS state, r.start_time, r.end_time, r.hparams,"
        " r.restart_id, r.restarts, r.log_retention_days, r.external_run_id, v.request_id, v.seed, m.metadata,"
        " c.uuid::text AS warm_start, e.owner_id, e.job_id, e.unmanaged,"
        " coalesce(e.end_time, r.start_time) AS experiment_end, " + _TASKS + " AS tasks"
        " FROM runs r JOIN trials_v2 v ON v.run_id = r.id JOIN experiments e ON e.id = r.experiment_id"
        " LEFT JOIN runs_metadata m ON m.run_id = r.id LEFT JOIN checkpoints_v2 c ON c.id = r.warm_start_checkpoint_id"
        " WHERE r.id > %(after)s ORDER BY r.id LIMIT %(limit)s",
        "SELECT count(*) AS n FROM runs r JOIN trials_v2 v ON v.run_id = r.id",
        work.trial,
        refs={"experiment_id": Kind.EXPERIMENTS},
    ),
    Table(
        Kind.ALLOCATIONS,
        Allocation,
        "SELECT a.allocation_id AS key, a.allocation_id, a.task_id, a.resource_pool, a.start_time, a.end_time, a.slots,"
        " a.exit_reason, a.exit_error, a.status_code, t.start_time AS task_start, t.end_time AS task_end,"
        " r.id AS trial_id, r.experiment_id FROM allocations a JOIN tasks t ON t.task_id = a.task_id"
        " LEFT JOIN run_id_task_id x ON x.task_id = a.task_id LEFT JOIN runs r ON r.id = x.run_id"
        ' WHERE a.allocation_id COLLATE "C" > %(after)s ORDER BY a.allocation_id COLLATE "C" LIMIT %(limit)s',
        "SELECT count(*) AS n FROM allocations",
        work.allocation,
        first="",
        refs={"trial_id": Kind.TRIALS, "experiment_id": Kind.EXPERIMENTS},
    ),
    Table(
        Kind.CHECKPOINTS,
        Checkpoint,
        "SELECT c.uuid::text AS key, c.uuid, coalesce(c.task_id, (SELECT x.task_id FROM run_id_task_id x WHERE"
        " x.run_id = rc.run_id ORDER BY x.task_id LIMIT 1)) AS task_id, c.allocation_id, c.report_time,"
        " c.state::text AS state, c.resources, c.metadata, c.size, rc.run_id, r.experiment_id"
        " FROM checkpoints_v2 c LEFT JOIN run_checkpoints rc ON rc.checkpoint_id = c.uuid"
        " LEFT JOIN runs r ON r.id = rc.run_id WHERE c.uuid > %(after)s::uuid ORDER BY c.uuid LIMIT %(limit)s",
        "SELECT count(*) AS n FROM checkpoints_v2",
        work.checkpoint,
        first="00000000-0000-0000-0000-000000000000",
        refs={"run_id": Kind.TRIALS, "experiment_id": Kind.EXPERIMENTS},
        by=("uuid",),
    ),
    Table(
        Kind.MODELS,
        Model,
        "SELECT m.id AS key, m.*, (SELECT max(v.version) FROM model_versions v WHERE v.model_id = m.id)"
        " AS last_version FROM models m WHERE m.id > %(after)s ORDER BY m.id LIMIT %(limit)s",
        "SELECT count(*) AS n FROM models",
        registry.model,
    ),
    Table(
        Kind.MODEL_VERSIONS,
        ModelVersion,
        "SELECT v.id AS key, v.*, v.checkpoint_uuid::text AS checkpoint_uuid FROM model_versions v"
        " WHERE v.id > %(after)s ORDER BY v.id LIMIT %(limit)s",
        "SELECT count(*) AS n FROM model_versions",
        registry.version,
        refs={"checkpoint_uuid": Kind.CHECKPOINTS},
    ),
    Table(
        Kind.TRIAL_SOURCES,
        TrialSource,
        "SELECT * FROM (SELECT trial_id::text || ' ' || checkpoint_uuid::text AS key, trial_id,"
        " checkpoint_uuid::text AS checkpoint_uuid, model_id, model_version,"
        " trial_source_info_type::text AS trial_source_info_type FROM trial_source_infos) found"
        ' WHERE key COLLATE "C" > %(after)s ORDER BY key COLLATE "C" LIMIT %(limit)s',
        "SELECT count(*) AS n FROM trial_source_infos",
        registry.source,
        first="",
        refs={"trial_id": Kind.TRIALS, "checkpoint_uuid": Kind.CHECKPOINTS},
        by=("trial_id", "checkpoint_uuid"),
    ),
    Table(
        Kind.WEBHOOKS,
        Webhook,
        "SELECT w.id AS key, w.id, w.url, w.webhook_type::text AS webhook_type, w.workspace_id, w.name,"
        " w.mode::text AS mode, (SELECT jsonb_agg(jsonb_build_object('kind', t.trigger_type::text, 'condition',"
        " t.condition) ORDER BY t.id) FROM webhook_triggers t WHERE t.webhook_id = w.id) AS triggers"
        " FROM webhooks w WHERE w.id > %(after)s ORDER BY w.id LIMIT %(limit)s",
        "SELECT count(*) AS n FROM webhooks",
        places.webhook,
    ),
)

BY_KIND = {table.kind: table for table in TABLES}
