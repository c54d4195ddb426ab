"""A line between a client and a server that can be cut and mended."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Generator


class Relay:
    """Passes bytes on to a port of this host. While it is cut, connections are refused and those there were are gone."""

    def __init__(self, target: int, host: str = "127.0.0.1") -> None:
        self._target = target
        self._host = host
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = self._listen(0)
        self.port: int = self._listener.getsockname()[1]

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server((self._host, port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is closed when the line is cut
            while True:
                near, _ = listener.accept()
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError), near, socket.create_connection(("127.0.0.1", self._target)) as far:
            with self._lock:
                self._ends |= {near, far}
            while True:
                for end in select.select([near, far], [], [])[0]:
                    piece = end.recv(65_536)
                    if not piece:
                        return
                    (far if end is near else near).sendall(piece)

    def cut(self) -> None:
        """Until `mend`."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            ends, self._ends = self._ends, set()
        for end in ends:
            with contextlib.suppress(OSError):  # it was closed already
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """At the same port."""
        self._listener = self._listen(self.port)


@contextlib.contextmanager
def relayed(target: int, host: str = "127.0.0.1") -> Generator[Relay]:
    """A line from an address of this host to a port of it, cut in the end."""
    relay = Relay(target, host)
    try:
        yield relay
    finally:
        relay.cut()
