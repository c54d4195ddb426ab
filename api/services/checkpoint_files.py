"""Removes single files of checkpoints that stay."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.auth.authentication import AgentPrincipal, AllocationPrincipal, UserPrincipal
from api.auth.authorization import changeable, readable_checkpoint
from api.errors import BadRequest, NotFound
from api.services import cleanup
from api.temporal import outbox
from database import retention
from database.models import Checkpoint, Experiment, StorageRemoval
from workflows import names
from workflows.config.patterns import PatternRefused, PatternSet
from workflows.messages import FileRemovalOrder


def remove_matching(
    session: Session, wanted: Sequence[str], globs: Sequence[str] | None, user: UserPrincipal, roots: Sequence[str]
) -> None:
    """Have the files of checkpoints removed whose names match one of `globs`, none without any; where all match, the
    checkpoint goes.

    The records follow the files: what is shown as partially deleted has lost them. Raises: BadRequest, NotFound,
    Forbidden, FailedPrecondition; then nothing was done.
    """
    if not wanted:
        raise BadRequest("checkpointUuids: expected one or more")
    if globs is None:
        raise BadRequest("checkpointGlobs: expected a list, such as optimizer/** and *.tmp")
    patterns = _patterns(globs)
    files: dict[int, dict[str, list[str]]] = {}
    emptied: list[str] = []
    for uuid in dict.fromkeys(uuid.lower() for uuid in wanted):
        row = readable_checkpoint(session, uuid, user)
        changeable(session, row.experiment_id, user)
        cleanup.check_ours(session, row.experiment_id, roots)
        session.refresh(row, with_for_update=True)
        doomed = [name for name in row.resources if patterns.matches(name)]
        left = {name: size for name, size in row.resources.items() if name not in set(doomed)}
        if not doomed:
            continue
        if not any(not name.endswith("/") for name in left):
            emptied.append(uuid)
            continue
        files.setdefault(row.experiment_id, {})[uuid] = doomed
    cleanup.check_unused(session, [uuid for of_checkpoints in files.values() for uuid in of_checkpoints], user)
    if emptied:
        cleanup.delete_checkpoints(session, emptied, user, roots)
    for experiment_id, of_checkpoints in files.items():
        _post(session, session.get_one(Experiment, experiment_id), files=of_checkpoints)


def remove_tensorboard_files(session: Session, experiment: Experiment, roots: Sequence[str]) -> None:
    """Have the TensorBoard files of an experiment removed. Raises: FailedPrecondition."""
    cleanup.check_ours(session, experiment.id, roots)
    _post(session, experiment, tensorboard=True)


def note_resources(
    session: Session, uuid: str, resources: Mapping[str, int], caller: UserPrincipal | AllocationPrincipal
) -> None:
    """A client removed files of a checkpoint by itself: these are left. Raises: NotFound, Forbidden, BadRequest."""
    row = readable_checkpoint(session, uuid.lower(), caller)
    if isinstance(caller, UserPrincipal):
        changeable(session, row.experiment_id, caller)
    elif not caller.is_of_experiment(row.experiment_id):
        raise NotFound(f"checkpoint {uuid} not found")
    session.refresh(row, with_for_update=True)
    unknown = sorted(resources.keys() - row.resources.keys())
    if unknown:
        raise BadRequest(f"checkpoint {uuid}: resources: {unknown[0]!r} is no file of it: they can only become fewer")
    if resources.keys() == row.resources.keys():
        return
    retention.set_resources(row, resources)


def removal_order(session: Session, removal_id: str, agent: AgentPrincipal, roots: Sequence[str]) -> dict[str, Any]:
    """What an agent needs to carry a removal out, keys of the storage included.

    Args:
        session: Of a transaction.
        removal_id: Of a removal that is not finished.
        agent: Who asks. One that joined gets those of its own pool only.
        roots: Folders that the operator named.

    Raises: NotFound.
    """
    row = session.get(StorageRemoval, removal_id)
    if row is None or row.finished_at is not None or (agent.agent_id is not None and agent.pool != row.pool):
        raise NotFound(f"removal {removal_id} not found, or it is done")
    config = session.get_one(Experiment, row.experiment_id).config
    known = session.scalars(select(Checkpoint).where(Checkpoint.uuid.in_([*row.uuids, *row.files])))
    return {
        "storage": config["checkpoint_storage"],
        "mounts": config.get("bind_mounts") or [],
        "roots": list(roots),
        "tensorboard": row.tensorboard,
        "files": row.files,
        "claims": {
            checkpoint.uuid: {
                "writer": checkpoint.task_id,
                "paths": list(checkpoint.resources),
                "isOfContainer": bool(checkpoint.allocation_id),
            }
            for checkpoint in known
        },
    }


def _post(session: Session, experiment: Experiment, **what: Any) -> None:
    removal = retention.post_removal(session, experiment, **what)
    order = FileRemovalOrder(pool=removal.pool, removal_id=removal.id)
    outbox.post(session, names.file_removal_workflow(removal.id), outbox.REMOVE_FILES, order.model_dump(mode="json"))


def _patterns(globs: Sequence[str]) -> PatternSet:
    """What globs stand for: `*` and `?` within a folder, `**` across folders. Linear in time. Raises: BadRequest."""
    for glob in globs:
        if not glob or len(glob) > 1000 or "\0" in glob:
            raise BadRequest(f"checkpointGlobs: {glob[:80]!r}: expected a pattern of 1 to 1000 characters")
    try:
        return PatternSet([_expression(glob) for glob in globs])
    except PatternRefused as error:
        raise BadRequest(f"checkpointGlobs: {error}") from None


def _expression(glob: str) -> str:
    pieces = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    found = re.split(r"(\*\*/|\*\*|\*|\?)", glob.removeprefix("./"))
    return "(?s)^" + "".join(pieces.get(piece, re.escape(piece)) for piece in found) + "$"
