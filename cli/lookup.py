"""What people call by its name: found at the cluster, or an error that names what is nearly called so."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Generator, Iterable
from typing import Any

from cli import session
from determined import errors
from determined.common.api._url import api_path


def workspace(name: str) -> dict[str, Any]:
    """A workspace. Raises: NotFoundException."""
    found: list[dict[str, Any]] = session.fetch("workspaces", name=name).get("workspaces") or []
    return _only("workspace", name, found, workspace_names)


def project(workspace_name: str, name: str) -> dict[str, Any]:
    """A project of a workspace. Raises: NotFoundException."""
    path = f"workspaces/{workspace(workspace_name)['id']}/projects"
    found: list[dict[str, Any]] = session.fetch(path, name=name).get("projects") or []
    return _only("project", name, found, lambda: [each["name"] for each in session.fetch_all(path, "projects")])


def user(name: str) -> dict[str, Any]:
    """A user. Raises: NotFoundException."""
    with nearest(name, user_names):
        return session.get().get(api_path("users", name, "by-username")).json()["user"]


def group(name: str) -> dict[str, Any]:
    """A group of users, as `{"groupId", "name"}`. Raises: NotFoundException."""
    found = [each["group"] for each in groups()]
    return _only("group", name, [each for each in found if each["name"] == name], lambda: [g["name"] for g in found])


def groups(**wanted: Any) -> list[dict[str, Any]]:
    """All groups with the number of their members, of one user if `userId` is given."""
    from cli import paging

    return paging.items(
        lambda size, start: (
            session.get().post("/api/v1/groups/search", wanted | {"limit": size, "offset": start}).json()
        ),
        "groups",
    )


def role(name: str) -> dict[str, Any]:
    """A role. Raises: NotFoundException."""
    found: list[dict[str, Any]] = (
        session.get().post("/api/v1/roles/search", {"limit": 1000, "offset": 0}).json()["roles"]
    )
    mine = [each for each in found if each["name"].lower() == name.lower()]
    return _only("role", name, mine, lambda: [each["name"] for each in found])


def workspaces_by_id() -> dict[int, str]:
    """Names of all workspaces that I may see."""
    return {each["id"]: each["name"] for each in session.fetch_all("workspaces", "workspaces")}


def workspace_names() -> list[str]:
    """Of all workspaces that I may see."""
    return list(workspaces_by_id().values())


def user_names() -> list[str]:
    """Of all users."""
    return [each["username"] for each in session.fetch_all("users", "users")]


def model_names() -> list[str]:
    """Of all models that I may see."""
    return [each["name"] for each in session.fetch_all("models", "models")]


def template_names() -> list[str]:
    """Of all templates that I may see."""
    return [each["name"] for each in session.fetch_all("templates", "templates")]


def pool_names() -> list[str]:
    """Of all resource pools."""
    return [each["name"] for each in session.fetch_all("resource-pools", "resourcePools")]


def agent_names() -> list[str]:
    """Ids of all agents."""
    return [each["id"] for each in session.fetch_all("agents", "agents", excludeSlots=True, excludeContainers=True)]


@contextlib.contextmanager
def nearest(name: str, names: Callable[[], Iterable[str]]) -> Generator[None]:
    """Within it, an error that something is not found also tells which existing name is nearest to `name`.

    Args:
        names: Asked only then.
    """
    try:
        yield
    except errors.NotFoundException as error:
        try:
            near = _nearest(name, names())
        except errors.APIException:  # without the right to see the names, the original error stands
            raise error from None
        raise _not_found(error.message, near) from None


def _only(kind: str, name: str, found: list[dict[str, Any]], names: Callable[[], Iterable[str]]) -> dict[str, Any]:
    """The one that is called exactly so, or else in another case."""
    if not found:
        raise _not_found(f"{kind} {name!r} not found", _nearest(name, names()))
    return next((each for each in found if each["name"] == name), found[0])


def _nearest(name: str, names: Iterable[str]) -> str | None:
    known = {each.lower(): each for each in names}
    if name in known.values():
        return None  # something else was not found
    close = difflib.get_close_matches(name.lower(), known, 1, 0.6)
    return known[close[0]] if close else None


def _not_found(message: str, near: str | None) -> errors.NotFoundException:
    return errors.NotFoundException(f"{message}; did you mean {near!r}?" if near is not None else message)
