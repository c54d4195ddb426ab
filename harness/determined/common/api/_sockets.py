"""HTTP/1.1 to one server, over sockets: what synchronous sessions speak, unless a proxy is between.

Importing httpx takes 60 ms of processor time, which is most of a `det` command that reads and much of a short trial.
Neither needs more of it than this: one request at a time on a connection, connections that stay open, and bodies that
are read as they arrive.
"""

from __future__ import annotations

import re
import select
import socket
import threading
import time
from collections.abc import Mapping
from urllib.parse import quote

from determined.common.api._transport import CONNECT_TIMEOUT_S, MAX_IDLE_CONNECTIONS, MAX_IDLE_S, TransportError, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, Callable, NoReturn

    from determined.common.api._transport import Request, Settings

_PIECE_BYTES = 256 << 10
_MAX_HEAD_BYTES = 100 << 10
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: .*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;.*)?")
#: What stands in a path or query as it is: all that URLs have, and what is encoded already.
_AS_IT_IS = "/?%:@!$&'()*+,;=-._~[]"
_WITH_BODY = ("POST", "PUT", "PATCH")


class Headers(Mapping[str, str]):
    """Headers of an answer, found by their names in any case. What comes twice is one, with a comma between.

    Raises:
        TransportError: A line is no header.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._values: dict[str, str] = {}
        last = ""
        for line in lines:
            if line[:1] in (b" ", b"\t") and last:  # a value that goes on
                self._values[last] += " " + line.strip().decode("latin-1")
                continue
            found = _FIELD.fullmatch(line)
            if found is None:
                _refuse("illegal header line", line)
            last, value = found.group(1).decode("ascii").lower(), found.group(2).decode("latin-1")
            self._values[last] = f"{self._values[last]}, {value}" if last in self._values else value

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class SocketTransport:
    """Connections to one server, none yet. Several threads may use it, each with a connection of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._idle: list[_Connection] = []  # the one used last is the last
        self._lock = threading.Lock()

    def send(self, request: Request, opened: Callable[[socket.socket], None]) -> Answer:
        """Send one request and read the head of its answer. `opened` gets each socket that this opens.

        Raises:
            TransportError: The server can't be reached, or went away.
            ValueError: A header is not of ASCII.
        """
        head = self._head(request)
        connection = self._take() or _Connection(self._settings, opened)
        try:
            return connection.ask(request, head, self._give_back)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Close the connections that no request uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _head(self, request: Request) -> bytes:
        path = quote(self._settings.prefix + request.target.partition("#")[0], safe=_AS_IT_IS) or "/"
        lines = [f"{request.method} {path} HTTP/1.1", f"Host: {self._settings.authority}"]
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        if request.body is not None or request.method in _WITH_BODY:
            lines.append(f"Content-Length: {len(request.body or b'')}")
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def _take(self) -> _Connection | None:
        """A connection that is open; the server closes those that were idle for some time."""
        oldest = time.monotonic() - MAX_IDLE_S
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.idle_since >= oldest and connection.is_silent():
                return connection
            connection.close()

    def _give_back(self, connection: _Connection) -> None:
        connection.idle_since = time.monotonic()
        with self._lock:
            self._idle.append(connection)
            surplus = self._idle.pop(0) if len(self._idle) > MAX_IDLE_CONNECTIONS else None
        if surplus is not None:
            surplus.close()


class Answer:
    """The head of an answer; its body is still to be read.

    Attributes:
        status_code: The status.
        headers: The headers.
    """

    def __init__(
        self,
        connection: _Connection,
        status_code: int,
        headers: Headers,
        is_to_head: bool,
        give_back: Callable[[_Connection], None] | None,
    ) -> None:
        self._connection: _Connection | None = connection
        self.status_code = status_code
        self.headers = headers
        self._has_body = not is_to_head and status_code not in (204, 304)
        self._give_back = give_back

    def iter_raw(self) -> Iterator[bytes]:
        """The body as it arrives. Raises: TransportError."""
        connection = self._connection
        if connection is None:
            raise TransportError("the answer was closed", maybe_sent=True)
        coding = self.headers.get("transfer-encoding")
        length = self.headers.get("content-length")
        if not self._has_body:
            pass
        elif coding is not None:
            if coding.lower() != "chunked":
                _refuse("illegal transfer-encoding", coding.encode())
            yield from connection.chunks()
        elif length is not None:
            yield from connection.exactly(_length_of(length))
        else:  # it ends with the connection
            self._give_back = None
            while piece := connection.receive():
                yield piece
        self._connection = None
        if self._give_back is not None and connection.is_drained:
            self._give_back(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Give up what was not read of the body, and the connection with it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Connection:
    """One connection, for one request at a time."""

    def __init__(self, settings: Settings, opened: Callable[[socket.socket], None]) -> None:
        self.idle_since = 0.0
        self._buffer, self._at = b"", 0  # what was received, and how much of it was read
        try:
            # as bytes: for a text, Python loads the codec of names in all scripts, whatever it is
            host: Any = settings.host.encode() if settings.host.isascii() else settings.host
            self._socket = socket.create_connection((host, settings.port), CONNECT_TIMEOUT_S)
        except (OSError, UnicodeError) as e:
            raise _failure(e, maybe_sent=False) from e
        try:
            for option in settings.socket_options():
                self._socket.setsockopt(*option)
            opened(self._socket)
            if settings.is_tls:
                self._socket = settings.context().wrap_socket(self._socket, server_hostname=settings.host)
                opened(self._socket)
        except BaseException as e:
            self.close()
            if isinstance(e, OSError):
                raise _failure(e, maybe_sent=False) from e
            raise

    @property
    def is_drained(self) -> bool:
        """Whether nothing was received that was not asked for."""
        return self._at == len(self._buffer)

    def is_silent(self) -> bool:
        """Whether the server has neither closed it nor sent what nobody asked for."""
        try:
            if hasattr(select, "poll"):  # `select` knows no file number above 1023
                poll = select.poll()
                poll.register(self._socket, select.POLLIN)
                return not poll.poll(0)
            return not select.select([self._socket], [], [], 0)[0]
        except (OSError, ValueError):
            return False

    def ask(self, request: Request, head: bytes, give_back: Callable[[_Connection], None]) -> Answer:
        """Send a request and read the head of its answer. Raises: TransportError."""
        self._socket.settimeout(request.timeout_s)
        body = request.body or b""
        try:
            if len(body) <= _PIECE_BYTES:
                self._socket.sendall(head + body)
            else:
                self._socket.sendall(head)
                self._socket.sendall(body)
        except ConnectionError:
            pass  # an answer may be there already: that the body is too large
        except OSError as e:
            raise _failure(e) from e
        while True:
            first, *rest = self._head()
            line = _STATUS.fullmatch(first)
            if line is None:
                _refuse("illegal status line", first)
            status = int(line.group(2))
            if status == 101 or status >= 200:
                break
        headers = Headers(rest)
        closes = "close" in headers.get("connection", "").lower() or line.group(1) == b"0" or status == 101
        return Answer(self, status, headers, request.method == "HEAD", None if closes else give_back)

    def receive(self, most: int = _PIECE_BYTES) -> bytes:
        """What has arrived, up to `most` bytes; empty when the server has closed. Raises: TransportError."""
        if not self.is_drained:
            piece = self._buffer[self._at : self._at + most]
            self._at += len(piece)
            return piece
        try:
            return self._socket.recv(most)
        except OSError as e:
            raise _failure(e) from e

    def exactly(self, count: int) -> Iterator[bytes]:
        """That many bytes, as they arrive. Raises: TransportError."""
        while count:
            piece = self.receive(min(count, _PIECE_BYTES))
            if not piece:
                raise TransportError(f"{count} bytes are missing", maybe_sent=True)
            count -= len(piece)
            yield piece

    def chunks(self) -> Iterator[bytes]:
        """A body whose length was not known when it began. Raises: TransportError."""
        while True:
            line = self._line()
            found = _CHUNK.fullmatch(line)
            if found is None:
                _refuse("illegal chunk header", line)
            count = int(found.group(1), 16)
            if not count:
                break
            yield from self.exactly(count)
            if end := self._line():
                _refuse("illegal end of a chunk", end)
        left = _MAX_HEAD_BYTES
        while line := self._line():  # trailers
            left -= len(line)
            if left < 0:
                _refuse("too many trailers, the last", line)

    def close(self) -> None:
        """Close it at once."""
        self._socket.close()

    def _head(self) -> list[bytes]:
        """The lines up to the empty one."""
        lines: list[bytes] = []
        left = _MAX_HEAD_BYTES
        try:
            while (line := self._line()) or not lines:
                left -= len(line) + 1
                if left < 0:
                    _refuse("the head is too long, at", line)
                if line:  # empty lines before the first one mean nothing
                    lines.append(line)
        except _Ended:
            raise TransportError("the server disconnected without sending a response", maybe_sent=True) from None
        return lines

    def _line(self) -> bytes:
        """The next line, without its end. Raises: TransportError."""
        seen = self._at
        while (end := self._buffer.find(b"\n", seen)) < 0:
            rest = self._buffer[self._at :]
            if len(rest) > _MAX_HEAD_BYTES:
                _refuse("a line is too long, at", rest)
            self._buffer, self._at, seen = b"", 0, len(rest)
            piece = self.receive()
            if not piece:
                raise _Ended("the server disconnected", maybe_sent=True)
            self._buffer = rest + piece
        line = self._buffer[self._at : end]
        self._at = end + 1
        return line.rstrip(b"\r")


class _Ended(TransportError):
    """The server has closed the connection within a line."""


def _length_of(text: str) -> int:
    lengths = {each.strip() for each in text.split(",")}
    if len(lengths) != 1 or not re.fullmatch("[0-9]{1,18}", text := lengths.pop()):
        _refuse("illegal content-length", text.encode())
    return int(text)


def _refuse(what: str, line: bytes) -> NoReturn:
    raise TransportError(f"this is not HTTP: {what} {line[:100]!r}", maybe_sent=True)


def _failure(e: Exception, *, maybe_sent: bool = True) -> TransportError:
    return TransportError("timed out" if isinstance(e, socket.timeout) else say(e), maybe_sent)
