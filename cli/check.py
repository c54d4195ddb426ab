"""Checking a configuration before it is sent, with the same models as the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cli import render, session
from determined import errors

if TYPE_CHECKING:
    from workflows.config import ConfigError, Problem


def check_config(text: str, origin: str, *, template: str | None = None, has_positions: bool = True) -> None:
    """Say everything that is wrong with a configuration, before anything is sent.

    If the cluster has another version than this client, the cluster decides: what is found here is a warning then.

    Args:
        text: The configuration.
        origin: How to call it: its file.
        template: The name of the template that fills it up.
        has_positions: Whether lines of `text` are lines of the file.

    Raises:
        InvalidExperimentException: The configuration can't be used.
        NotFoundException: There is no such template.
    """
    found = findings(text, _template(template) if template else None)
    if not found:
        return
    lines = [describe(problem, origin, has_positions) for problem in found]
    other = _other_version()
    if other is None:
        what = "problem" if len(found) == 1 else "problems"
        head = f"{origin} has {len(found)} {what}; nothing was sent:"
        raise errors.InvalidExperimentException("\n".join([head, *lines]))
    from determined import __version__

    render.note(
        f"This client has version {__version__} and the cluster {other}, which decides. Here it would be wrong:"
    )
    for line in lines:
        render.note(f"warning: {line}")


def findings(text: str, template: Mapping[str, Any] | None = None) -> list[Problem]:
    """What is wrong with a configuration, as far as this client can see; the first line first."""
    from workflows.config import ClusterDefaults, ConfigError, parse_experiment_config

    # The cluster fills in where checkpoints go. What is written of it can be judged only if it says its type.
    defaults = ClusterDefaults(checkpoint_storage={"type": "directory", "container_path": "/checkpoints"})
    try:
        parse_experiment_config(text, template=template, cluster=defaults, seed=0)
    except ConfigError as error:
        found = error.problems if _storage_has_type(text, template, error) else _but_storage(error)
        return sorted(found, key=lambda problem: (problem.line or 0, problem.column or 0))
    return []


def describe(problem: Problem, origin: str, has_positions: bool = True) -> str:
    """A problem as one line: `file:line:column: where: what (hint)`."""
    place = origin
    if has_positions and problem.line is not None:
        place += f":{problem.line}" + (f":{problem.column}" if problem.column is not None else "")
    what = problem.message if problem.path == "<config>" else f"{problem.path}: {problem.message}"
    return f"{place}: {what}" + (f" ({problem.hint})" if problem.hint else "")


def _storage_has_type(text: str, template: Mapping[str, Any] | None, error: ConfigError) -> bool:
    from workflows.config import Stage
    from workflows.config.yamltext import parse_text

    if error.stage is Stage.PARSE:
        return True
    written: Any = parse_text(text).value
    return any("type" in render.part(config, "checkpoint_storage") for config in (written, template))


def _but_storage(error: ConfigError) -> list[Problem]:
    return [problem for problem in error.problems if not problem.path.startswith("<config>.checkpoint_storage")]


def _template(name: str) -> dict[str, Any]:
    from determined.common.api._url import api_path

    return render.part(session.get().get(api_path("templates", name)).json(), "template", "config")


def _other_version() -> str | None:
    """The cluster's version, if it is another than ours; None also if it can't be asked."""
    from determined import __version__

    try:
        info = session.get().get("/api/v1/master", timeout_s=5.0, max_tries=2).json()
    except errors.APIException:
        return None
    version = session.release_of(info)
    return version if version != __version__ else None
