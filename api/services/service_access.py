"""What opens a task's services to a user: the token of an address, and whom ssh logs in as."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.service_tokens import ServiceToken, ServiceTokens
from api.auth.task_secrets import may_know
from database.models import Task, User, Workspace


def token_for(tokens: ServiceTokens, task: Task, user: UserPrincipal) -> str:
    """For an address that this user opens; empty if the task has ended, or is not for them."""
    if task.ended_at is not None or not may_know(task, user):
        return ""
    return tokens.issue(ServiceToken(task_id=task.id, user_id=user.user_id, token_id=user.token_id or 0))


def login_of(session: Session, task: Task, owner: User) -> dict[str, Any]:
    """v1AgentUserGroup: as whom its container runs; an empty user: the one of the image, usually root.

    Once it is ready, its container has said who that is: also a process of the agent's user, or an image's own user.
    """
    group: dict[str, Any] = session.get_one(Workspace, task.workspace_id).agent_user_group or {}
    if group.get("agent_uid") is not None:
        return {
            "user": task.login_user or group.get("agent_user") or "",
            "agentUid": group["agent_uid"],
            "agentGid": group.get("agent_gid"),
        }
    return {"user": task.login_user or owner.agent_user or "", "agentUid": owner.agent_uid, "agentGid": owner.agent_gid}
