"""Workspaces, projects, templates, policies and webhooks: rows of the other database -> rows of ours. Pure."""

from __future__ import annotations

from typing import Any, cast

from database.models import ConfigPolicy, Project, Template, Webhook, WebhookTrigger, Workspace, WorkspacePin
from workers.importing.rows import Context, Record, Skipped, clean, moment
from workers.importing.source import Row
from workflows.lifecycle.imports import Kind

#: What every cluster has, under the same number: the workspace Uncategorized and its project.
UNCATEGORIZED = 1
_GONE = ("DELETING", "DELETED", "DELETE_FAILED")
_LONGEST_NAME = 80


def workspace(row: Row, context: Context) -> Record | Skipped:
    """A workspace, with who pinned it."""
    if row["state"] in _GONE:
        return Skipped("they are being deleted there")
    number = UNCATEGORIZED if row["id"] == UNCATEGORIZED else context.number(Kind.WORKSPACES, row["id"])
    there: list[dict[str, Any]] = row["pins"] or []
    pins = [(context.id_of(Kind.USERS, pin["user"]), moment(pin["at"])) for pin in there]
    agent_user = None
    if row["uid"] is not None or row["gid"] is not None:
        agent_user = {
            "agentUid": row["uid"], "agentUser": row["user_"], "agentGid": row["gid"], "agentGroup": row["group_"]
        }  # fmt: skip
    also = [
        (WorkspacePin, {"workspace_id": number, "user_id": user, "pinned_at": at})
        for user, at in pins
        if user is not None
    ]
    return Record(
        Workspace,
        {
            "id": number,
            "name": context.free_name(Kind.WORKSPACES, clean(row["name"])[:_LONGEST_NAME], str(row["id"])),
            "owner_id": context.user(row["user_id"]),
            "everyone": "contributor" if number == UNCATEGORIZED else None,
            "is_immutable": bool(row["immutable"]),
            "is_archived": row["archived"],
            "checkpoint_storage": _without_nulls(row["checkpoint_storage_config"]) or None,
            "default_compute_pool": row["default_compute_pool"] or None,
            "default_aux_pool": row["default_aux_pool"] or None,
            "agent_user_group": agent_user,
            "created_at": moment(row["created_at"]),
        },
        also=[*also],
        replaces=[(WorkspacePin, "workspace_id", number)],
    )


def project(row: Row, context: Context) -> Record | Skipped:
    """A project with its notes."""
    if row["state"] in _GONE:
        return Skipped("they are being deleted there")
    workspace_id = context.id_of(Kind.WORKSPACES, row["workspace_id"])
    if workspace_id is None:
        return Skipped("their workspaces did not come")
    number = UNCATEGORIZED if row["id"] == UNCATEGORIZED else context.number(Kind.PROJECTS, row["id"])
    notes: list[dict[str, Any]] = row["notes"] or []
    return Record(
        Project,
        {
            "id": number,
            "workspace_id": workspace_id,
            "name": clean(row["name"])[:_LONGEST_NAME],
            "key": context.free_name(Kind.PROJECTS, row["short_name"], str(row["id"])) or None
            if row["short_name"]
            else None,
            "description": clean(row["description"]),
            "notes": [{"name": note.get("name", ""), "contents": note.get("contents", "")} for note in notes],
            "owner_id": context.user(row["user_id"]),
            "is_immutable": bool(row["immutable"]),
            "is_archived": row["archived"],
            "created_at": moment(row["created_at"]),
        },
    )


def template(row: Row, context: Context) -> Record | Skipped:
    """A template of configurations."""
    workspace_id = context.id_of(Kind.WORKSPACES, row["workspace_id"])
    if workspace_id is None:
        return Skipped("their workspaces did not come")
    return Record(
        Template,
        {
            "name": context.free_name(Kind.TEMPLATES, clean(row["name"])[:_LONGEST_NAME], row["name"]),
            "config": row["config"],
            "workspace_id": workspace_id,
            "owner_id": context.owner_id,
        },
    )


def policy(row: Row, context: Context) -> Record | Skipped:
    """What administrators set or limit in configurations."""
    workspace_id = context.id_of(Kind.WORKSPACES, row["workspace_id"])
    if row["workspace_id"] is not None and workspace_id is None:
        return Skipped("their workspaces did not come")
    content = {"invariant_config": row["invariant_config"], "constraints": row["constraints"]}
    return Record(
        ConfigPolicy,
        {
            "workspace_id": workspace_id,
            "workload": row["workload_type"],
            "content": {name: value for name, value in content.items() if value},
            "changed_by": context.user(row["last_updated_by"]),
            "changed_at": moment(row["last_updated_time"]),
        },
    )


def webhook(row: Row, context: Context) -> Record | Skipped:
    """A webhook. The key that it signs with was in the other master's settings: it gets one of its own."""
    workspace_id = context.id_of(Kind.WORKSPACES, row["workspace_id"])
    if row["workspace_id"] is not None and workspace_id is None:
        return Skipped("their workspaces did not come")
    number = context.number(Kind.WEBHOOKS, row["id"])
    triggers: list[dict[str, Any]] = row["triggers"] or []
    return Record(
        Webhook,
        {
            "id": number,
            "name": clean(row["name"])[:_LONGEST_NAME],
            "url": clean(row["url"]),
            "kind": row["webhook_type"],
            "mode": row["mode"],
            "workspace_id": workspace_id,
            "owner_id": context.owner_id,
        },
        also=[
            (WebhookTrigger, {"webhook_id": number, "kind": each["kind"], "condition": each["condition"] or {}})
            for each in triggers
        ],
        replaces=[(WebhookTrigger, "webhook_id", number)],
    )


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {name: _without_nulls(item) for name, item in fields.items() if item is not None}
