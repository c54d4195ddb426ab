"""Runs the operator's commands that launch and terminate nodes."""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path

from temporalio import activity

from workflows.messages import ProviderCall, ProviderOutcome

_MOST_OUTPUT = 500
#: Of our own environment what a program needs to be found and to speak; our secrets stay with us.
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER")


class NodePrograms:
    """Activities of the orchestrator.

    Args:
        folder: of the programs that may be run, and no others: who may change a pool's settings over the API gets no
            shell on this host by that. None: none may.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @activity.defn
    async def run_provider(self, call: ProviderCall) -> ProviderOutcome:
        """Run a command, to its end; how it failed is an answer. Heartbeat time-out: as the workflow sets it."""
        try:
            program, *arguments = shlex.split(call.command)
            path = self._program(program)
        except ValueError as error:
            return ProviderOutcome(problem=f"{call.command!r}: {error}")
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {
            "UNDETERRED_POOL": call.pool,
            "UNDETERRED_NODE": call.node_id,
            "UNDETERRED_SLOTS": str(call.slots),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                path,
                *arguments,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            return ProviderOutcome(problem=f"{program!r} could not be run: {error.strerror}")
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode == 0:
            return ProviderOutcome()
        told = output.decode(errors="replace").strip()[-_MOST_OUTPUT:]
        return ProviderOutcome(
            problem=f"{call.command!r} exited with {process.returncode}: {told or 'it said nothing'}"
        )

    def _program(self, name: str) -> Path:
        if self._folder is None:
            raise ValueError("no programs of providers are run here: UNDETERRED_PROVIDER_FOLDER is not set")
        if "/" in name or name in ("", ".", ".."):
            raise ValueError("expected the name of a program in UNDETERRED_PROVIDER_FOLDER, without a path")
        path = self._folder / name
        if not path.is_file():
            raise ValueError(f"there is no program {name!r} in UNDETERRED_PROVIDER_FOLDER")
        return path
