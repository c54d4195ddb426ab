"""The agent's transport: answers of every form, connections that end, and errors that are httpx's."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from workers.lean_http import LeanTransport, transport_to

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


def saying(data: bytes, *, then_close: bool = False) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if then_close:
            writer.close()

    return answer


async def silence(writer: asyncio.StreamWriter) -> None:
    """No answer."""


class Server:
    """Answers requests in turn, the last way from then on."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self._open: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.append(writer)
        try:
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                lines = self.heads[-1].lower().split(b"\r\n")
                length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length")), 0)
                self.bodies.append(await reader.readexactly(length))
                await (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def hang_up(self) -> None:
        while self._open:
            self._open.pop().close()


@asynccontextmanager
async def client_of(server: Server) -> AsyncGenerator[httpx.AsyncClient]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    timeout = httpx.Timeout(5.0, read=0.3)
    base = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=base, transport=LeanTransport(), timeout=timeout) as client:
        yield client
    server.hang_up()
    listening.close()


async def test_connection_stays_open_between_requests() -> None:
    server = Server(saying(OK))
    async with client_of(server) as client:
        for number in range(3):
            answer = await client.post("/a/b?c=d", json={"number": number}, headers={"Authorization": "Bearer x"})
            assert (answer.status_code, answer.json()) == (200, {})
    assert server.connections == 1
    assert server.heads[0].startswith(b"POST /a/b?c=d HTTP/1.1\r\n")
    assert b"Authorization: Bearer x\r\n" in server.heads[0]
    assert server.bodies == [b'{"number":0}', b'{"number":1}', b'{"number":2}']


async def test_requests_at_once_have_a_connection_each() -> None:
    server = Server(saying(OK))
    async with client_of(server) as client:
        answers = await asyncio.gather(*(client.get("/") for _ in range(3)))
    assert [answer.status_code for answer in answers] == [200] * 3
    assert server.connections == 3


PACKED = gzip.compress(b'{"a": 1}')


@pytest.mark.parametrize(
    "answer",
    [
        saying(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{\"a\r\n5\r\n\": 1}\r\n0\r\n\r\n"),
        saying(b"HTTP/1.1 200 OK\r\n\r\n{\"a\": 1}", then_close=True),
        saying(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 8\r\n\r\n{\"a\": 1}", then_close=True),
        saying(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{\"a\": 1}"),
        saying(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n%s" % (len(PACKED), PACKED)),
    ],
    ids=["chunks", "until the end", "not kept", "continued", "packed"],
)  # fmt: skip
async def test_answer_of_every_form_is_read(answer: Answer) -> None:
    async with client_of(Server(answer)) as client:
        for _ in range(2):
            assert (await client.get("/")).json() == {"a": 1}


async def test_connection_that_the_server_closed_meanwhile_is_not_used() -> None:
    server = Server(saying(OK))
    async with client_of(server) as client:
        await client.get("/")
        server.hang_up()
        await asyncio.sleep(0.05)
        assert (await client.get("/")).status_code == 200
    assert server.connections == 2


async def test_late_answer_is_not_the_next_requests() -> None:
    server = Server(silence, saying(OK))
    async with client_of(server) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/")
        assert (await client.get("/")).status_code == 200
    assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (saying(b"nonsense\r\n\r\n"), httpx.RemoteProtocolError),
        (saying(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", then_close=True), httpx.RemoteProtocolError),
        (saying(b"", then_close=True), httpx.RemoteProtocolError),
        (saying(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}"), httpx.DecodingError),
    ],
    ids=["no HTTP", "half of it", "nothing", "not packed"],
)
async def test_broken_answer_is_an_error_and_the_next_request_goes_on(answer: Answer, error: type[Exception]) -> None:
    async with client_of(Server(answer, saying(OK))) as client:
        with pytest.raises(error):
            await client.get("/")
        assert (await client.get("/")).status_code == 200


async def test_server_that_is_not_there_is_an_error() -> None:
    async with httpx.AsyncClient(transport=LeanTransport()) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:9")


async def test_line_break_in_a_header_is_not_sent() -> None:
    server = Server(saying(OK))
    async with client_of(server) as client:
        with pytest.raises(httpx.LocalProtocolError, match="line break"):
            await client.get("/", headers={b"X-Trace": b"1\r\nX-Admin: yes"})  # pyright: ignore[reportArgumentType]
    assert server.heads == []


def test_server_behind_a_proxy_has_the_usual_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "api.inside")
    assert transport_to("http://api.outside:8080", True) is None
    assert isinstance(transport_to("http://api.inside:8080", True), LeanTransport)
