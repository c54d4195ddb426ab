"""Registers the search attributes that operators filter workflows by: `python -m workers.search_attributes`.

An orchestrator does so at its start, where it may. Settings are those of the orchestrator towards Temporal.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

from api.settings import TemporalSettings
from workers.connect import connect, connection_of, ensure_search_attributes
from workers.connect import run as run_process


async def main(settings: TemporalSettings, stop: asyncio.Event) -> None:
    """Register what is missing, and return. Raises: GivenUp."""
    client = await connect(connection_of(settings), stop)
    if client is not None:
        await ensure_search_attributes(client)


def run() -> NoReturn:
    """Entry point."""
    run_process(TemporalSettings, main)


if __name__ == "__main__":
    run()
