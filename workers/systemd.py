"""What systemd is notified of, where it started this process as `Type=notify`; elsewhere nothing is sent."""

from __future__ import annotations

import asyncio
import os
import socket

READY, STOPPING, _ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"


def notify(state: str) -> None:
    """Send a state. A systemd that does not take it is no reason to end."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
        except OSError:
            return


async def watch() -> None:
    """Say again and again that the event loop answers, as often as `WatchdogSec` asks for; never returns."""
    period_us = os.environ.get("WATCHDOG_USEC", "")
    if not period_us.isdecimal() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    while True:
        notify(_ALIVE)
        await asyncio.sleep(int(period_us) / 2e6)
