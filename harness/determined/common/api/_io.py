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
    from typing import Any, Callable, TypeVar, Union

    from determined.common.api._httpx import httpx
    from determined.common.api._sockets import Answer as SocketAnswer
    from determined.common.api._sockets import SocketTransport
    from determined.common.api._transport import Request, Settings

    T = TypeVar("T")
    Answer = Union[SocketAnswer, httpx.Response]
    Transport = Union[SocketTransport, "_ByProxy"]

sleep = time.sleep


def owner() -> Hashable:
    """The owner of a connection: after a fork it is another one."""
    return os.getpid()


class _ByProxy:
    """Connections through a proxy."""

    def __init__(self, settings: Settings) -> None:
        from determined.common.api._httpx import httpx

        self._base_url = settings.base_url
        self._connections = httpx.HTTPTransport(**settings.transport())

    def send(self, request: Request, opened: Callable[[socket.socket], None]) -> httpx.Response:
        """Send one request and read the head of its answer. Raises: httpx.HTTPError."""

        def trace(event: str, info: dict[str, Any]) -> None:
            if event.endswith(("connect_tcp.complete", "start_tls.complete")):
                opened(info["return_value"].get_extra_info("socket"))

        return self._connections.handle_request(request.for_httpx(self._base_url, trace=trace))

    def close(self) -> None:
        """Close them."""
        self._connections.close()


def new_transport(settings: Settings) -> Transport:
    """Connections to one server, none yet."""
    if settings.proxy:
        return _ByProxy(settings)
    from determined.common.api._sockets import SocketTransport

    return SocketTransport(settings)


def send(transport: Transport, connections: Connections, request: Request) -> Answer:
    """Send one request and read the head of its answer. Raises: one of `failures()`."""
    return transport.send(request, connections.add)


def abandon(transport: Transport) -> None:
    """Close connections that nobody uses any more."""
    transport.close()


class Connections:
    """The connections of one transport, and how many requests are under way on them.

    Closing a socket does not wake who reads from it in another thread, and its number may at once be another
    connection's, on which that thread then waits. So sockets are shut down, and closed when nobody uses them any more.
    """

    def __init__(self) -> None:
        # no set of weak references: its Python code would run as a socket is freed, where an interrupt gets lost
        self._sockets: list[weakref.ref[socket.socket]] = []
        self._lock = threading.Lock()
        self._under_way = 0
        self._is_broken_off = False
        self._to_close: Transport | None = None

    def begin(self) -> None:
        """A request begins. `end` follows."""
        with self._lock:
            self._under_way += 1

    def add(self, sock: socket.socket) -> None:
        """A socket was opened."""
        with self._lock:
            self._sockets = [known for known in self._sockets if known() is not None]
            self._sockets.append(weakref.ref(sock))
            is_late = self._is_broken_off
        if is_late:
            _shut_down(sock)

    def end(self) -> None:
        """A request is over. The last one after `close` closes the transport."""
        with self._lock:
            self._under_way -= 1
            transport = self._to_close if self._under_way == 0 else None
        if transport is not None:
            transport.close()

    def close(self, transport: Transport) -> None:
        """End all requests under way, in whatever thread, those that are just connecting too; close the transport."""
        with self._lock:
            self._is_broken_off = True
            sockets = [sock for known in self._sockets if (sock := known()) is not None]
            is_free = self._under_way == 0
            self._to_close = transport
        for sock in sockets:
            _shut_down(sock)
        if is_free:
            transport.close()


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
