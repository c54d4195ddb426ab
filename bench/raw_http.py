"""A report of a trial over a raw connection: a client that costs little beside the server that is measured."""

from __future__ import annotations

import asyncio
import json
from typing import Any


async def post_report(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, trial_id: int, token: str, report: dict[str, Any]
) -> bytes:
    """Send it and read the whole answer; its status line."""
    body = json.dumps(report).encode()
    head = (
        f"POST /api/v1/trials/{trial_id}/metrics HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        f"Grpc-Metadata-x-allocation-token: Bearer {token}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    status, *headers = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    length = next(int(line[15:]) for line in headers if line.lower().startswith(b"content-length:"))
    await reader.readexactly(length)
    return status
