"""Files of checkpoints that go while the checkpoint stays."""

from __future__ import annotations

import re
import uuid as uuids
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from api import cleanup, outbox
from api.access import changeable, readable_checkpoint
from api.auth import AllocationPrincipal, UserPrincipal
from api.errors import BadRequest, NotFound
from database.models import Checkpoint, Cluster, Experiment
from database.pools import storage_pool
from workflows import names
from workflows.config.patterns import PatternRefused, PatternSet
from workflows.messages import FileRemovalOrder, RemoveFiles


def remove_matching(session: Session, wanted: Sequence[str], globs: Sequence[str], user: UserPrincipal) -> None:
    """Have the files of checkpoints removed whose names match one of `globs`; where all match, the checkpoint goes.

    The records change now, the files follow. Raises: BadRequest, NotFound, Forbidden, FailedPrecondition; then nothing
    was done.
    """
    if not wanted:
        raise BadRequest("checkpointUuids: expected one or more")
    if not globs:
        raise BadRequest("checkpointGlobs: expected one or more, such as optimizer/** or *.tmp")
    patterns = _patterns(globs)
    files: dict[int, dict[str, list[str]]] = {}
    emptied: list[str] = []
    for uuid in dict.fromkeys(uuid.lower() for uuid in wanted):
        row = readable_checkpoint(session, uuid, user)
        changeable(session, row.experiment_id, user)
        session.refresh(row, with_for_update=True)
        doomed = [name for name in row.resources if patterns.matches(name)]
        left = {name: size for name, size in row.resources.items() if name not in set(doomed)}
        if not doomed:
            continue
        if not any(not name.endswith("/") for name in left):
            emptied.append(uuid)
            continue
        _set_resources(row, left)
        files.setdefault(row.experiment_id, {})[uuid] = [name for name in doomed if not name.endswith("/")]
    cleanup.check_unused(session, [uuid for of_checkpoints in files.values() for uuid in of_checkpoints], user)
    if emptied:
        cleanup.delete_checkpoints(session, emptied, user)
    for experiment_id, of_checkpoints in files.items():
        _post(session, session.get_one(Experiment, experiment_id), files=of_checkpoints)


def remove_tensorboard_files(session: Session, experiment: Experiment) -> None:
    """Have the TensorBoard files of an experiment removed."""
    cluster_id = session.scalars(select(Cluster.cluster_id)).one()
    _post(session, experiment, tensorboard=f"{cluster_id}/tensorboard/experiment/{experiment.id}")


def note_resources(
    session: Session, uuid: str, resources: Mapping[str, int], caller: UserPrincipal | AllocationPrincipal
) -> None:
    """A client removed files of a checkpoint by itself: these are left. Raises: NotFound, Forbidden, BadRequest."""
    row = readable_checkpoint(session, uuid.lower(), caller)
    if isinstance(caller, UserPrincipal):
        changeable(session, row.experiment_id, caller)
    elif row.experiment_id != caller.experiment_id:
        raise NotFound(f"checkpoint {uuid} not found")
    session.refresh(row, with_for_update=True)
    unknown = sorted(resources.keys() - row.resources.keys())
    if unknown:
        raise BadRequest(f"checkpoint {uuid}: resources: {unknown[0]!r} is no file of it: they can only become fewer")
    if resources.keys() == row.resources.keys():
        return
    _set_resources(row, resources)


def _set_resources(row: Checkpoint, left: Mapping[str, int]) -> None:
    row.resources = dict(left)
    row.size_bytes = sum(left.values())
    row.state = "PARTIALLY_DELETED" if left else "DELETED"


def _post(session: Session, experiment: Experiment, **what: Any) -> None:
    config = experiment.config
    removal = RemoveFiles(storage=config["checkpoint_storage"], mounts=config.get("bind_mounts") or [], **what)
    order = FileRemovalOrder(pool=storage_pool(session, experiment), removal=removal)
    workflow_id = names.file_removal_workflow(str(uuids.uuid4()))
    outbox.post(session, workflow_id, outbox.REMOVE_FILES, order.model_dump(mode="json"))


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
