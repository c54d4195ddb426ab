"""The other processes of the API, and what they do for this one.

A user's request comes to any of them, and so does each connection of a container.

A process has a row with its address while it runs. What one asks of another is a message that only processes with the
cluster's secret can make or read: it names its recipient and is valid for a minute. Nothing that a user or a container
sends is ever an address.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import ipaddress
import re
import secrets
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import orjson
import structlog
from cryptography.fernet import Fernet, InvalidToken
from sqlalchemy import delete, make_url, select
from starlette.concurrency import run_in_threadpool

from api.errors import DATABASE_ERRORS, ApiError, NotFound, Unauthenticated
from api.pem import served_by, trusting
from api.proxy.relay import LARGEST_MESSAGE
from api.settings import ApiSettings
from database.models import ApiProcess
from database.session import Database
from database.types import utc_now
from database.upsert import insert

if TYPE_CHECKING:
    import aiohttp

log = structlog.get_logger()

#: Where processes of the API reach each other.
PEERS = "/api/v1/undeterred/peers"
#: How long a container has to connect to its service.
OPEN_WITHIN_S = 10.0
_EVERY_S = 5.0
#: A process that has not said for so long that it runs is asked nothing; its row is removed after an hour.
_SILENT_S, _FORGOTTEN_S = 30.0, 3600.0
#: How long a message may be on its way: the clocks of the cluster's hosts may differ by half of that.
_VALID_S = 60
#: Rows are not read more often than that, in seconds.
_LOOK_EVERY_S = 0.5
_CONNECT_S = 2.0


class Unreachable(ApiError):
    """The service does not answer, and why."""

    status, code, reason = 502, 14, "Unavailable"


class NotHere(NotFound):
    """This process has no connection of the container."""


class Lost(Unreachable):
    """The connection to the container broke before it answered."""


@dataclass(frozen=True)
class Message:
    """What one process asks of another.

    Attributes:
        kind: `order`: have a container open a stream; `stream`: take a stream that a container opened here; `taken`: a
            container is connected here now, give up an older connection.
        allocation_id: Whose container.
        stream_id: Its first part is the id of the process that wants the stream.
        service: Of an order: its name.
    """

    kind: str
    allocation_id: str
    stream_id: str = ""
    service: str = ""


@dataclass(frozen=True)
class Peer:
    """A process of the API: its id, where it is, and the name in its certificate."""

    process_id: str
    url: str
    server_name: str = ""


class Peers:
    """What this process knows of the others, and asks of them.

    Args:
        database: Has a row for each process.
        secret: The cluster's own, which leaves the database for no one.
        url: Where the others reach this process.
        server_name: The name in the certificate that it serves with; empty: it serves without TLS.
        trusted: What checks the certificates of others; None: by the system's authorities.
    """

    def __init__(
        self,
        database: Database,
        secret: str,
        url: str,
        *,
        server_name: str = "",
        trusted: ssl.SSLContext | None = None,
    ) -> None:
        self.process_id = secrets.token_hex(8)
        self.url = url
        self._server_name, self._trusted = server_name, trusted
        self._database = database
        key = hashlib.sha256(b"undeterred peers\0" + secret.encode()).digest()
        self._sealing = Fernet(base64.urlsafe_b64encode(key))
        self._known: dict[str, Peer] = {}
        self._looked_at = 0.0
        self._looking = asyncio.Lock()
        self._made: aiohttp.ClientSession | None = None
        self._telling: set[asyncio.Task[None]] = set()

    # -- who there is --------------------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Be known to the others before the first request comes. Raises: DATABASE_ERRORS."""
        await run_in_threadpool(self._note, is_first=True)
        await self._look()

    async def run(self) -> None:
        """Say that this process runs, and see who else does, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await run_in_threadpool(self._note)
                await self._look()
            except DATABASE_ERRORS as error:
                log.warning("the database does not answer: peers are those known so far", error=str(error))

    async def close(self) -> None:
        """Take the row away, and close what is kept open."""
        with contextlib.suppress(*DATABASE_ERRORS):  # then another process removes it later
            await run_in_threadpool(self._forget)
        for task in self._telling:
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)
        if self._made is not None:
            await self._made.close()

    def _note(self, *, is_first: bool = False) -> None:
        now = utc_now()
        with self._database.write() as session:
            statement = insert(session, ApiProcess).values(
                id=self.process_id, url=self.url, server_name=self._server_name, seen_at=now
            )
            session.execute(statement.on_conflict_do_update(index_elements=["id"], set_={"seen_at": now}))
            session.execute(delete(ApiProcess).where(ApiProcess.seen_at < now - timedelta(seconds=_FORGOTTEN_S)))
            if is_first:  # what was at this address has ended without a word
                mine = ApiProcess.url == self.url, ApiProcess.id != self.process_id
                session.execute(delete(ApiProcess).where(*mine))

    def _forget(self) -> None:
        with self._database.write() as session:
            session.execute(delete(ApiProcess).where(ApiProcess.id == self.process_id))

    async def look(self) -> None:
        """See who there is now, unless that was done a moment ago. Raises: Unreachable."""
        async with self._looking:
            if asyncio.get_running_loop().time() - self._looked_at < _LOOK_EVERY_S:
                return
            try:
                await self._look()
            except DATABASE_ERRORS:
                raise Unreachable("the database does not answer: other processes of the API can't be found") from None

    async def _look(self) -> None:
        self._known = await run_in_threadpool(self._read)
        self._looked_at = asyncio.get_running_loop().time()

    def _read(self) -> dict[str, Peer]:
        alive = ApiProcess.seen_at > utc_now() - timedelta(seconds=_SILENT_S), ApiProcess.id != self.process_id
        with self._database.read() as session:
            found = session.scalars(select(ApiProcess).where(*alive))
            return {row.id: Peer(row.id, row.url, row.server_name) for row in found}

    # -- what they ask -------------------------------------------------------------------------------------------------

    def seal(self, peer_id: str, message: Message) -> str:
        """A message for one process, as the value of a header."""
        told = [peer_id, message.kind, message.allocation_id, message.stream_id, message.service]
        return "Peer " + self._sealing.encrypt(orjson.dumps(told)).decode()

    def read(self, header: str) -> Message:
        """What another process asks of this one. Raises: Unauthenticated, if no process of this cluster did."""
        kind, _, token = header.partition(" ")
        try:
            if kind != "Peer":
                raise InvalidToken
            to, *told = orjson.loads(self._sealing.decrypt(token.encode(), ttl=_VALID_S))
        except (InvalidToken, UnicodeEncodeError):
            raise Unauthenticated("this is for processes of the API only") from None
        if to != self.process_id:
            raise Unauthenticated("this is for another process of the API")
        return Message(*told)

    async def order(self, message: Message) -> None:
        """Have whichever process has the container's connection send it an order; returns when none of them has it.

        While the stream is on its way this goes on: cancel it when the stream is here.

        Raises: Unreachable, with what the container says; Lost.
        """
        asking = [asyncio.ensure_future(self._ask(peer, message)) for peer in self._known.values()]
        try:
            for next_one in asyncio.as_completed(asking):
                await next_one
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, peer: Peer, message: Message) -> None:
        import aiohttp

        try:
            async with self._session.post(
                peer.url + PEERS,
                headers={"authorization": self.seal(peer.process_id, message)},
                timeout=aiohttp.ClientTimeout(sock_connect=_CONNECT_S, sock_read=OPEN_WITHIN_S + _CONNECT_S),
                server_hostname=peer.server_name or None,
            ) as response:
                status, body = response.status, await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.info("a process of the API does not answer", url=peer.url, error=str(error) or type(error).__name__)
            return
        if status == Lost.status:
            told = orjson.loads(body)
            raise (Lost if told["lost"] else Unreachable)(told["message"])

    def tell_taken(self, allocation_id: str) -> None:
        """Have all others give up an older connection of a container that is connected here now."""

        async def tell() -> None:
            await self.order(Message("taken", allocation_id))

        if self._known:
            task = asyncio.create_task(tell())
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def who(self, stream_id: str) -> Peer:
        """The process that wants a stream. Raises: NotFound, Unreachable."""
        process_id = stream_id.partition(".")[0]
        if process_id not in self._known:
            await self.look()
        found = self._known.get(process_id)
        if found is None:
            raise NotFound("this stream is not asked for, or not any more")
        return found

    @contextlib.asynccontextmanager
    async def handed_on(self, peer: Peer, message: Message) -> AsyncGenerator[aiohttp.ClientWebSocketResponse]:
        """A stream that a container opened here, to the process that wants it. Raises: NotFound, Unreachable."""
        import aiohttp

        try:
            inner = await self._session.ws_connect(
                peer.url + PEERS,
                headers={"authorization": self.seal(peer.process_id, message)},
                max_msg_size=LARGEST_MESSAGE,
                server_hostname=peer.server_name or None,
            )
        except aiohttp.WSServerHandshakeError:
            raise NotFound("this stream is not asked for, or not any more") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unreachable(f"the process of the API at {peer.url} does not answer: {error}") from None
        async with inner:
            yield inner

    @property
    def _session(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._made is None:  # it belongs to the event loop that runs
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
            connector = aiohttp.TCPConnector(limit=0, ssl=self._trusted or True)
            self._made = aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False)
        return self._made


def own_url(settings: ApiSettings, towards: Callable[[str, int], str] | None = None) -> str:
    """Where this process is for its peers: as set, or where it listens, or the address towards the database.

    Args:
        settings: Of this process.
        towards: The address that this host has towards a host and port; for tests.
    """
    host, port = settings.peer_address, ""
    if _HOST_AND_PORT.fullmatch(host):
        host, _, port = host.rpartition(":")
    host = host.strip("[]") or settings.host.split(",")[0].strip()
    if _is_wildcard(host):
        database = make_url(settings.database_url)
        host = (towards or _address_towards)(database.host, database.port or 5432) if database.host else "127.0.0.1"
    scheme = "https" if settings.tls_cert_file else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port or settings.port}"


_HOST_AND_PORT = re.compile(r"([^:]+|\[.+\]):[0-9]+")


def peers_of(settings: ApiSettings, database: Database, secret: str) -> Peers:
    """The peers of a process with these settings. Raises: CantUse, if a file that they name can't be used."""
    served = served_by(settings)
    trusted = None
    if settings.peer_ca_file is not None:
        trusted = trusting("peer_ca_file", settings.peer_ca_file)
    elif settings.tls_cert_file is not None:
        trusted = ssl.create_default_context()
        # processes have one certificate, or several by one authority that stands behind each in its file
        trusted.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        trusted.load_verify_locations(settings.tls_cert_file)
    name = "" if served is None else served.name
    return Peers(database, secret, own_url(settings), server_name=name, trusted=trusted)


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


def _address_towards(host: str, port: int) -> str:
    """The address of this host in the network that leads to another one. Nothing is sent."""
    try:
        found: Sequence[tuple[int, int, int, str, tuple[str, int]]]
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)  # pyright: ignore[reportAssignmentType]
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        log.warning("peer_url is not set, and this host's address is not found", database=host, error=str(error))
        return "127.0.0.1"
