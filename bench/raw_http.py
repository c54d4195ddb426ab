"""A request over a raw connection: a client that costs little beside the server that is measured."""

from __future__ import annotations

import asyncio
import json
from typing import Any


async def post(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, headers: str, body: dict[str, Any]
) -> bytes:
    """Send JSON and read the whole answer; its status line. Each of `headers` ends with a carriage return and line feed."""
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(text)}\r\n{headers}\r\n"
    writer.write(head.encode() + text)
    status, *answered = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    length = next(int(line[15:]) for line in answered if line.lower().startswith(b"content-length:"))
    await reader.readexactly(length)
    return status


async def post_report(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, trial_id: int, token: str, report: dict[str, Any]
) -> bytes:
    """Send a report of a trial and read the whole answer; its status line."""
    header = f"Grpc-Metadata-x-allocation-token: Bearer {token}\r\n"
    return await post(reader, writer, f"/api/v1/trials/{trial_id}/metrics", header, report)
