"""Whether a port is free when `det up` looks."""

from __future__ import annotations

import socket
import threading
import time

from workers.embedded import _becomes_free  # pyright: ignore[reportPrivateUsage]


def test_port_is_waited_for_whose_holder_is_just_going() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        going = threading.Timer(0.3, held.close)
        going.start()
        began = time.monotonic()
        assert _becomes_free(port)
        assert time.monotonic() - began >= 0.2
        going.join()


def test_port_that_stays_held_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        assert not _becomes_free(held.getsockname()[1])


def test_free_port_is_free_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    began = time.monotonic()
    assert _becomes_free(port)
    assert time.monotonic() - began < 0.9
