"""The gateway: the part of Temporal that agents of other hosts can reach, and all that they are authorized to do there.

Temporal knows rights on a namespace at the finest. Through here an agent with a credential of its own polls its own
task queue and its pool's storage queue, and answers the tasks that it was handed: nothing else passes. The tokens of
tasks are sealed on their way to the agent, since an agent that knew how they are made could answer for others.

Where histories are encrypted, agents have no keys: the gateway decrypts what a task holds and encrypts their answers.

It keeps nothing: any number of them may run side by side, and one that is gone costs what a broken cable costs.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from grpc import aio
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    PollActivityTaskQueueRequest,
    PollActivityTaskQueueResponse,
    RecordActivityTaskHeartbeatRequest,
    RespondActivityTaskCanceledRequest,
    RespondActivityTaskCompletedRequest,
    RespondActivityTaskFailedRequest,
)

from api.auth.authentication import AgentPrincipal, Authenticator
from api.errors import Unauthenticated
from api.health import Check
from api.pem import ServedCertificate
from api.temporal.connection import Connection
from api.temporal.transcoding import messages_in, transcode
from workflows import names
from workflows.encryption import hide, opened, seal

log = structlog.get_logger()

_SERVICE = "/temporal.api.workflowservice.v1.WorkflowService/"
_ANSWERS: dict[str, Any] = {
    "RecordActivityTaskHeartbeat": RecordActivityTaskHeartbeatRequest,
    "RespondActivityTaskCanceled": RespondActivityTaskCanceledRequest,
    "RespondActivityTaskCompleted": RespondActivityTaskCompletedRequest,
    "RespondActivityTaskFailed": RespondActivityTaskFailedRequest,
}
_SEAL_BYTES = 32
#: As Temporal's frontend takes and sends them at most, and some room.
_MESSAGE_BYTES = 16 << 20
#: A call whose sender named no deadline, in seconds.
_DEADLINE_S = 70.0
_CHECK_S = 2.0
#: Of every channel to Temporal's frontend, and of the server.
OPTIONS = [("grpc.max_receive_message_length", _MESSAGE_BYTES), ("grpc.max_send_message_length", _MESSAGE_BYTES)]

_DETAILS = "grpc-status-details-bin"

_Context = aio.ServicerContext[bytes, bytes]
_Handler = Callable[[str, bytes, _Context], Awaitable[bytes]]


@dataclass(frozen=True)
class _Agent:
    """One that joined, and of which pool it is."""

    agent_id: str
    pool: str


class CantListen(Exception):
    """An address can't be listened on. The message says which."""


class _Refused(Exception):
    def __init__(self, status: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.status = status


class Gateway(grpc.GenericRpcHandler):
    """Hands calls of agents on to Temporal's frontend, as far as each may make them.

    Args:
        upstream: A channel to Temporal's frontend.
        connection: The namespace of this cluster, what Temporal knows us by, and the keys of payloads.
        auth: Tells agents by their credentials.
        secret: What the tokens of tasks are sealed with; the same at all gateways of a cluster.
    """

    def __init__(self, upstream: aio.Channel, connection: Connection, auth: Authenticator, secret: str) -> None:
        self._connection = connection
        self._namespace = connection.namespace
        self._auth = auth
        self._secret = secret.encode()
        methods: dict[str, _Handler] = {
            "GetSystemInfo": self._pass,
            "DescribeNamespace": self._describe_namespace,
            "PollActivityTaskQueue": self._poll,
            **dict.fromkeys(_ANSWERS, self._answer),
        }
        self._handlers = {f"{_SERVICE}{name}": self._served(name, each) for name, each in methods.items()}
        self._leaving = asyncio.Event()
        self._calls: dict[str, Any] = {name: upstream.unary_unary(f"{_SERVICE}{name}") for name in methods}

    def leave(self) -> None:
        """Answer polls that wait with no task, as Temporal does after a minute: agents ask the next gateway."""
        self._leaving.set()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler of a method; None, which grpc answers with UNIMPLEMENTED, for all that agents have no need of."""
        return self._handlers.get(str(handler_call_details.method))

    def _served(self, name: str, handler: _Handler) -> Any:
        async def serve(request: bytes, context: _Context) -> bytes:
            try:
                return await handler(name, request, context)
            except _Refused as refusal:
                log.warning("refused", method=name, peer=context.peer(), reason=str(refusal))
                return await context.abort(refusal.status, str(refusal))
            except aio.AioRpcError as error:  # Temporal's own answer, with the details that tell SDKs what it means
                kept = [(key, value) for key, value in error.trailing_metadata() or () if key == _DETAILS]
                return await context.abort(error.code(), error.details() or "", tuple(kept))

        handler_of: Any = grpc.unary_unary_rpc_method_handler  # its types know no coroutines
        return handler_of(serve)

    async def _pass(self, name: str, request: bytes, context: _Context) -> bytes:
        await self._agent(context)
        return await self._forward(name, request, context)

    async def _describe_namespace(self, name: str, request: bytes, context: _Context) -> bytes:
        await self._agent(context)
        asked = DescribeNamespaceRequest.FromString(request)
        self._check_namespace(asked.namespace)
        if asked.id:
            raise _Refused(grpc.StatusCode.PERMISSION_DENIED, "agents name their namespace, not its id")
        return await self._forward(name, request, context)

    async def _poll(self, name: str, request: bytes, context: _Context) -> bytes:
        agent = await self._agent(context)
        asked = PollActivityTaskQueueRequest.FromString(request)
        self._check_namespace(asked.namespace)
        queue = asked.task_queue.name
        if queue not in (names.agent_queue(agent.agent_id), names.storage_queue(agent.pool)):
            raise _Refused(
                grpc.StatusCode.PERMISSION_DENIED, f"task queue {queue!r} is not of agent {agent.agent_id!r}"
            )
        task = PollActivityTaskQueueResponse.FromString(await self._wait(name, request, context))
        if task.task_token:
            await self._agent(context)  # it may have been removed while it waited
            if self._connection.keys is not None:
                transcode(task, self._connection.keys(), opened)
            task.task_token = self._seal(agent, task.task_token) + task.task_token
        return task.SerializeToString()

    async def _answer(self, name: str, request: bytes, context: _Context) -> bytes:
        agent = await self._agent(context)
        told = _ANSWERS[name].FromString(request)
        self._check_namespace(told.namespace)
        shown, token = told.task_token[:_SEAL_BYTES], told.task_token[_SEAL_BYTES:]
        if not hmac.compare_digest(shown, self._seal(agent, token)):
            raise _Refused(grpc.StatusCode.PERMISSION_DENIED, f"this task was not handed to agent {agent.agent_id!r}")
        told.task_token = token
        if self._connection.keys is not None:
            for failure in messages_in(told, Failure):
                hide(failure)
            transcode(told, self._connection.keys(), seal)
        return await self._forward(name, told.SerializeToString(), context)

    async def _wait(self, name: str, request: bytes, context: _Context) -> bytes:
        """The answer to a poll: a task, or none if this gateway leaves first."""
        polling = asyncio.ensure_future(self._forward(name, request, context))
        leaving = asyncio.ensure_future(self._leaving.wait())
        try:
            await asyncio.wait({polling, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return polling.result() if polling.done() else b""
        finally:
            polling.cancel()
            leaving.cancel()

    async def _forward(self, name: str, request: bytes, context: _Context) -> bytes:
        left: Any = context.time_remaining()  # None without a deadline
        deadline = _DEADLINE_S if left is None else left
        return await self._calls[name](request, timeout=deadline, metadata=self._connection.metadata())

    async def _agent(self, context: _Context) -> _Agent:
        """Which agent calls, by its credential."""
        sent = dict(context.invocation_metadata() or ()).get("authorization", "")
        credential = (sent.decode() if isinstance(sent, bytes) else sent).removeprefix("Bearer ").strip()
        caller = self._auth.remembered(credential, is_allocation=False)
        try:
            if caller is None:
                caller = await asyncio.to_thread(self._auth.identify, credential, is_allocation=False)
        except Unauthenticated as error:
            raise _Refused(grpc.StatusCode.UNAUTHENTICATED, error.message) from None
        if not isinstance(caller, AgentPrincipal) or caller.agent_id is None:
            raise _Refused(grpc.StatusCode.PERMISSION_DENIED, "this is for agents that joined the cluster")
        return _Agent(caller.agent_id, caller.pool)

    def _check_namespace(self, named: str) -> None:
        if named != self._namespace:
            raise _Refused(grpc.StatusCode.PERMISSION_DENIED, f"namespace {named!r} is not this cluster's")

    def _seal(self, agent: _Agent, token: bytes) -> bytes:
        return hmac.digest(self._secret, f"{agent.agent_id}\n".encode() + token, hashlib.sha256)


def of_upstream(upstream: aio.Channel, connection: Connection) -> Check:
    """Whether Temporal's frontend answers."""
    calls: Any = upstream  # its types know no coroutines
    ask = calls.unary_unary(f"{_SERVICE}GetSystemInfo")

    async def check() -> bool:
        await ask(b"", timeout=_CHECK_S, metadata=connection.metadata())
        return True

    return check


def _credentials(served: ServedCertificate) -> grpc.ServerCredentials:
    """What a server shows of a certificate as it is at each handshake."""
    shown = served.certificate

    def now() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(served.key, served.certificate)])

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        if served.certificate == shown:
            return None
        shown = served.certificate
        return now()

    credentials_of: Any = grpc.dynamic_ssl_server_credentials  # its types know no None for "as before"
    return credentials_of(now(), changed)


async def serve(gateway: Gateway, addresses: Sequence[str], served: ServedCertificate | None = None) -> aio.Server:
    """A started server, with TLS if it has a certificate. Raises: CantListen, if an address can't be listened on."""
    server = aio.server(options=[*OPTIONS, ("grpc.so_reuseport", 0)])  # a second one on a port gets an error
    server.add_generic_rpc_handlers([gateway])
    for address in addresses:
        try:
            if served is None:
                server.add_insecure_port(address)
            else:
                server.add_secure_port(address, _credentials(served))
        except RuntimeError:
            raise CantListen(f"{address} can't be listened on: is it this host's, and its port free?") from None
    await server.start()
    return server
