"""What the asynchronous and the synchronous client do differently: the synchronous side. By hand on both sides."""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable
    from typing import Any, Callable, TypeVar

    from determined.common.api._httpx import httpx
    from determined.common.api._transport import Settings

    T = TypeVar("T")

sleep = time.sleep


def owner() -> Hashable:
    """The owner of a connection: after a fork it is another one."""
    return os.getpid()


def new_transport(settings: Settings) -> httpx.HTTPTransport:
    """Connections to one server, none yet."""
    from determined.common.api._httpx import httpx

    return httpx.HTTPTransport(**settings.transport())


def abandon(transport: httpx.HTTPTransport) -> None:
    """Close connections that nobody uses any more."""
    transport.close()


class Connections:
    """The connections of one transport, and how many requests are under way on them.

    Closing a socket does not wake who reads from it in another thread, and its number may at once be another
    connection's, on which that thread then waits. So sockets are shut down, and closed when nobody uses them any more.
    """

    def __init__(self) -> None:
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._under_way = 0
        self._is_broken_off = False
        self._to_close: httpx.HTTPTransport | None = None

    def begin(self) -> dict[str, Any]:
        """A request begins; returns what it carries to be known here. `end` follows."""
        with self._lock:
            self._under_way += 1
        return {"trace": self._trace}

    def end(self) -> None:
        """A request is over. The last one after `close` closes the transport."""
        with self._lock:
            self._under_way -= 1
            transport = self._to_close if self._under_way == 0 else None
        if transport is not None:
            transport.close()

    def close(self, transport: httpx.HTTPTransport) -> None:
        """End all requests under way, in whatever thread, those that are just connecting too; close the transport."""
        with self._lock:
            self._is_broken_off = True
            sockets = list(self._sockets)
            is_free = self._under_way == 0
            self._to_close = transport
        for sock in sockets:
            _shut_down(sock)
        if is_free:
            transport.close()

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            sock = info["return_value"].get_extra_info("socket")
            with self._lock:
                self._sockets.add(sock)
                is_late = self._is_broken_off
            if is_late:
                _shut_down(sock)


def _shut_down(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is closed already


def run(function: Callable[..., T], *args: Any) -> T:
    """Call what blocks."""
    return function(*args)


def each(function: Callable[[T], None], items: Iterable[T], at_once: int) -> None:
    """Call `function` with each item, `at_once` at a time. The first error ends it."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(at_once, thread_name_prefix="each") as threads:
        running = [threads.submit(function, item) for item in items]
        try:
            for future in running:
                future.result()
        except BaseException:
            for future in running:
                future.cancel()
            raise
