"""The checks of the embedded cluster that need its own code: `det doctor` runs `python -m workers.check`.

It prints a JSON list of `{"name", "status", "message", "fix"}`, the status being ok, warning or problem. It changes
nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from pydantic import ValidationError
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.service import RPCError

from activities.launchers.environments import NoSuchPython, has_image, how_to_build, look_at
from api.pem import CantUse
from api.settings import TemporalSettings, from_environment
from api.temporal.connection import Connection
from database.errors import reason_of
from database.migrate import OtherSchema, is_current
from database.session import Database
from workers.embedded import ClusterState, home

_ANSWERS_WITHIN_S = 5.0

Finding = dict[str, str]


def run() -> None:
    """Print what was found."""
    folder = home()
    state = ClusterState.model_validate_json((folder / "cluster.json").read_text())
    findings = [asyncio.run(check_temporal(state)), *check_database(folder), check_storage(folder), check_trials(state)]
    sys.stdout.write(json.dumps(findings) + "\n")


async def check_temporal(state: ClusterState) -> Finding:
    """Whether Temporal answers a request, and not only its port."""
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN_S):
            found = from_environment(
                TemporalSettings, {**os.environ, "UNDETERRED_TEMPORAL_ADDRESS": state.temporal_address}
            )
            client = await Connection(found).client()
            await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    except (RuntimeError, RPCError, TimeoutError, CantUse, ValidationError) as error:
        reason = str(error).splitlines()[0][:120] or f"no answer within {_ANSWERS_WITHIN_S:g} s"
        what = f"at {state.temporal_address} there is no Temporal: {reason}"
        fix = "start it with `det up`" if state.temporal_port else "check TEMPORAL_ADDRESS and that server"
        return _finding("temporal", "problem", what, fix)
    return _finding("temporal", "ok", f"answers at {state.temporal_address}")


def check_database(folder: Path) -> list[Finding]:
    """Whether the records can be read and written, and have today's schema."""
    url = os.environ.get("UNDETERRED_DATABASE_URL") or f"sqlite:///{folder / 'undeterred.db'}"
    path = Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None
    where = str(path) if path is not None else "the server of UNDETERRED_DATABASE_URL"
    if path is not None and not path.is_file():  # opening it would make an empty one
        return [_finding("database", "problem", f"{where} does not exist", "start the cluster once with `det up`")]
    try:
        database = Database(url)
        with database.engine.connect() as connection:  # its transaction takes the lock that writing needs
            connection.execute(text("UPDATE cluster SET id = id"))
            connection.rollback()
        current = is_current(database)
    except OtherSchema as error:
        return [_finding("database", "problem", str(error), "install that release again")]
    except SQLAlchemyError as error:
        reason = reason_of(error)[:120]
        fix = f"make {where} writable for you, and look that its disk is not full"
        return [_finding("database", "problem", f"{where} can't be written: {reason}", fix)]
    if not current:
        fix = "restart the cluster with `det down` and `det up`, which brings it up to date"
        return [_finding("database", "problem", f"{where} does not have this version's schema", fix)]
    return [_finding("database", "ok", f"{where}: writable, its schema is current")]


def check_storage(folder: Path) -> Finding:
    """Whether checkpoints can be put where they go by default."""
    path = folder / "checkpoints"
    if not path.exists():
        return _finding("storage", "ok", f"{path}: will be made for the first checkpoint")
    probe = path / f".probe-{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        return _finding("storage", "problem", f"{path} can't be written: {error.strerror}", "make it writable for you")
    return _finding("storage", "ok", f"{path}: writable")


def check_trials(state: ClusterState) -> Finding:
    """Whether trials can start where they do: an image that is there, a Python with a harness and pip."""
    if state.launcher == "docker":
        image = state.trial_image
        is_there = has_image(image)
        if is_there:
            return _finding("trials", "ok", f"run in Docker, in the image {image} unless they name one")
        if is_there is None:  # said by the check of Docker
            return _finding("trials", "warning", f"run in Docker; whether it has the image {image} is unknown")
        return _finding(
            "trials", "problem", f"run in Docker, and this host lacks the image {image}", how_to_build(image)
        )
    try:
        python = look_at(state.trial_python or sys.executable)
    except NoSuchPython as error:
        return _finding("trials", "problem", str(error), "set UNDETERRED_TRIAL_PYTHON for `det up`")
    what, fix = python.problem()
    if what:
        return _finding("trials", "warning" if python.harness else "problem", what, fix)
    return _finding("trials", "ok", f"run as processes, in {python}")


def _finding(name: str, status: str, message: str, fix: str = "") -> Finding:
    return {"name": name, "status": status, "message": message, "fix": fix}


if __name__ == "__main__":
    run()
