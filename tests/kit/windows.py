"""A window of a shell's terminal, as its page is one."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection


def closed(socket: ClientConnection) -> int:
    """The code by which the other side closes it."""
    found = None
    while found is None:
        try:
            socket.recv(timeout=10)
        except ConnectionClosed as ended:
            found = ended.rcvd
    return found.code


class Window:
    """What a page is to a terminal: it counts and acknowledges what comes."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.told: list[dict[str, Any]] = []
        self.output = bytearray()
        self.hello: dict[str, Any] = json.loads(socket.recv(timeout=10))
        self.offset: int = self.hello["from"]

    @property
    def where(self) -> str:
        """How to go on from here."""
        return f"?epoch={self.hello['epoch']}&from={self.offset}"

    def take(self) -> None:
        """Take one message."""
        message = self.socket.recv(timeout=20)
        if isinstance(message, str):
            self.told.append(json.loads(message))
            if self.told[-1]["kind"] == "lost":
                self.offset = self.told[-1]["from"]
            return
        self.output += message
        self.offset += len(message)
        with contextlib.suppress(ConnectionClosed):
            self.say(kind="shown", offset=self.offset)

    def read(self, until: str) -> str:
        """The output, until it matches a pattern."""
        while re.search(until, self.output.decode(errors="replace"), re.DOTALL) is None:
            self.take()
        return self.output.decode(errors="replace")

    def until(self, **wanted: Any) -> dict[str, Any]:
        """Read until this was told."""
        while True:
            found = next((each for each in self.told if wanted.items() <= each.items()), None)
            if found is not None:
                return found
            self.take()

    def type(self, text: str) -> None:
        """Type it."""
        self.socket.send(text.encode())

    def say(self, **message: Any) -> None:
        """Tell the terminal something."""
        self.socket.send(json.dumps(message))

    def closed(self) -> int:
        """The code by which the other side closes it."""
        return closed(self.socket)

    def close(self) -> None:
        """Close it."""
        self.socket.close()
