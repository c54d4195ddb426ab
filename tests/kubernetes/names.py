"""The names of a cluster's services: what CoreDNS does elsewhere, for a cluster of tests."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Generator

_A, _IN = 1, 1
_NO_SUCH_NAME = 3
_S_TO_LIVE = 5


@contextlib.contextmanager
def answering(address: str, service: Callable[[str, str], str]) -> Generator[None]:
    """Answer questions for addresses at port 53 of an address, until the block is left.

    Args:
        address: Of this machine; pods ask there.
        service: The address of a service, by its namespace and name; empty: there is none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        is_over = threading.Event()
        thread = threading.Thread(target=_serve, args=(server, service, is_over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", (address, 53))
            thread.join()


def _serve(server: socket.socket, service: Callable[[str, str], str], is_over: threading.Event) -> None:
    while not is_over.is_set():
        question, client = server.recvfrom(512)
        if len(question) > 16:
            server.sendto(answer(question, service), client)


def answer(question: bytes, service: Callable[[str, str], str]) -> bytes:
    """The answer to a question of DNS. Source: RFC 1035, section 4."""
    labels: list[str] = []
    at = 12
    while size := question[at]:
        labels.append(question[at + 1 : at + 1 + size].decode().lower())
        at += 1 + size
    end = at + 5
    (kind,) = struct.unpack("!H", question[at + 1 : at + 3])
    address = ""
    if labels[2:] in (["svc"], ["svc", "cluster", "local"]):
        address = service(labels[1], labels[0])
    found = [address] if address and kind == _A else []
    header = struct.pack("!HHHHH", 0x8580 | (0 if address else _NO_SUCH_NAME), 1, len(found), 0, 0)
    records = b"".join(struct.pack("!HHHIH", 0xC00C, _A, _IN, _S_TO_LIVE, 4) + socket.inet_aton(each) for each in found)
    return question[:2] + header + question[12:end] + records
