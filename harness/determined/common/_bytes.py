"""Bytes between a TCP connection and a WebSocket, as tunnels carry them."""

from __future__ import annotations

import asyncio

TYPE_CHECKING = False
if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

#: What a reader of the connection holds at most.
PIECE = 256 * 1024


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: ClientConnection) -> None:
    """Carry both ways until one of the ends closes; texts are dropped. Source: spec tasks.md §4."""
    tasks = [asyncio.ensure_future(way) for way in (_out(reader, stream), _in(stream, writer))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _out(reader: asyncio.StreamReader, stream: ClientConnection) -> None:
    while piece := await reader.read(PIECE):
        await stream.send(piece)


async def _in(stream: ClientConnection, writer: asyncio.StreamWriter) -> None:
    async for message in stream:
        if isinstance(message, bytes):
            writer.write(message)
            await writer.drain()
