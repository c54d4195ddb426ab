"""Connecting to Temporal, and ending a process that did."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, NoReturn

import structlog
from pydantic import BaseModel
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.runtime import Runtime
from temporalio.service import RPCError, RPCStatusCode

from api import tracing
from api.pem import CantUse
from api.settings import TemporalSettings
from api.temporal.connection import Connection
from workers import systemd
from workers.configuration import VARIABLE, BadConfiguration, settings_of
from workers.logs import configure_logging
from workers.secret_environment import take
from workflows.names import SEARCH_ATTRIBUTES

log = structlog.get_logger()

_TYPES = {
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
}

#: What an error of the SDK's core has in it, and what it means.
_TLS_SIGNS = {
    "UnknownIssuer": "temporal_ca_file: expected the authority of Temporal's certificate",
    "NotValidForName": "temporal_server_name: expected a name that Temporal's certificate has",
    "connection closed": "temporal_cert_file: expected a certificate that this Temporal takes, if it asks for one",
    "InvalidContentType": "temporal_tls: expected false, as this Temporal speaks no TLS",
}


class GivenUp(Exception):
    """A worker process can't do its work. The message says why, for the user who started it."""


def connection_of(
    settings: TemporalSettings, credential: str | None = None, runtime: Runtime | None = None
) -> Connection:
    """How this process reaches Temporal. Raises: GivenUp, if a file that its settings name can't be used."""
    try:
        return Connection(settings, credential, runtime)
    except CantUse as error:
        raise GivenUp(str(error)) from None


async def connect(connection: Connection, stop: asyncio.Event) -> Client | None:
    """The connected client, however long Temporal takes to answer; None if asked to stop before.

    Raises: GivenUp, if Temporal answers that its namespace is not there, or not for us.
    """
    pause = 0.05
    while not stop.is_set():
        try:
            client = await connection.client()
            await _check_namespace(connection, client)
            return client
        except (RuntimeError, RPCError) as error:
            log.info("Temporal does not answer yet", address=connection.address, error=_reason(error))
        try:
            async with asyncio.timeout(pause):
                await stop.wait()
        except TimeoutError:
            pause = min(2.0, pause * 1.1)  # a tenth of what it took so far: a start is not held up by this
    return None


async def _check_namespace(connection: Connection, client: Client) -> None:
    where = f"temporal_namespace: {connection.namespace!r}"
    try:
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=connection.namespace))
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise GivenUp(
                f"{where}: expected a namespace of the Temporal at {connection.address}, which has none of this name: "
                f"`temporal operator namespace create -n {connection.namespace}` makes it"
            ) from None
        if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED):
            raise GivenUp(
                f"{where}: the Temporal at {connection.address} refuses this process: {error.message}: expected an API "
                "key, a certificate or a credential that may use this namespace"
            ) from None
        raise


def _reason(error: Exception) -> str:
    """What a user can act upon of an error of the SDK's core, which begins with its own objects."""
    text = str(error)
    for sign, what in _TLS_SIGNS.items():
        if sign in text:
            return f"{what}: {text}"
    return text


async def ensure_search_attributes(client: Client) -> None:
    """Register what operators filter by, where this Temporal lacks it (the embedded one is started with them).

    Raises: GivenUp, if Temporal lacks them and this process may not register them.
    """
    missing: dict[str, str] = {}
    try:
        listed = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
        missing = {name: kind for name, kind in SEARCH_ATTRIBUTES.items() if name not in listed.custom_attributes}
        if not missing:
            return
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=client.namespace, search_attributes={name: _TYPES[kind] for name, kind in missing.items()}
            )
        )
    except RPCError as error:
        if error.status in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
            raise GivenUp(_how_to_register(missing or SEARCH_ATTRIBUTES, client.namespace, error.message)) from None
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise
    log.info("search attributes registered", names=sorted(missing))


def _how_to_register(missing: Mapping[str, str], namespace: str, reason: str) -> str:
    options = " ".join(f"--name {name} --type {kind}" for name, kind in missing.items())
    return (
        f"search attributes are missing, and this process may not register them ({reason}). Who may, does so by "
        f"`temporal operator search-attribute create -n {namespace} {options}`, or with rights of an operator by "
        "`python -m workers.search_attributes`; on Temporal Cloud they are added on the page of the namespace"
    )


@contextlib.asynccontextmanager
async def following(connection: Connection, client: Client) -> AsyncGenerator[None]:
    """Within the block, the client shows the API key that its file holds."""
    task = asyncio.create_task(connection.follow_api_key(client))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The line of a process, which may name the file with its settings beside what `parser` knows."""
    parser.add_argument("--config", help=f"file with its settings, under those of the environment (or {VARIABLE})")
    return parser.parse_args()


def run(
    settings_model: type[BaseModel],
    main: Callable[[Any, asyncio.Event], Coroutine[Any, Any, None]],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    options: argparse.Namespace | None = None,
) -> NoReturn:
    """Run a worker process until SIGTERM or SIGINT, then leave. `options`: what `parsed` found in its line."""
    options = options or parsed(argparse.ArgumentParser(description="A process of Undeterred.", allow_abbrev=False))
    configure_logging()
    try:
        settings = settings_of(settings_model, options.config)
    except BadConfiguration as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)  # noqa: T201
        sys.exit(2)
    configure_logging(getattr(settings, "log_format", "text"))
    take("UNDETERRED_ADMIN_PASSWORD")  # it is in the settings now
    run_until_signal(main, settings, loop_factory=loop_factory)


def run_until_signal(
    main: Callable[[Any, asyncio.Event], Coroutine[Any, Any, None]],
    settings: Any,
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> NoReturn:
    """Run `main`, which leaves when its event is set, until SIGTERM or SIGINT; ends this process."""
    configure_logging(getattr(settings, "log_format", "text"))

    async def with_signals() -> None:
        stop = asyncio.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, stop.set)
        watching, stopping = asyncio.create_task(systemd.watch()), asyncio.create_task(_say_stopping(stop))
        try:
            _begin_traces(settings)
            await main(settings, stop)
        finally:
            watching.cancel()
            stopping.cancel()

    code = 0
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(with_signals())
    except GivenUp as error:
        log.error("this process ends", reason=str(error))
        code = 1
    tracing.end()
    # the SDK's native objects must go while the interpreter is whole, or the process may abort at its end
    gc.collect()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def _begin_traces(settings: Any) -> None:
    service = type(settings).__name__.removesuffix("Settings").lower()
    try:
        tracing.begin(service, getattr(settings, "otlp_endpoint", None))
    except tracing.NoTracing as error:
        raise GivenUp(str(error)) from None


async def _say_stopping(stop: asyncio.Event) -> None:
    await stop.wait()
    systemd.notify(systemd.STOPPING)


def mark_ready() -> None:
    """Notify the process that started this one that it does its work now."""
    # What was made until now stays. Each full collection would look at all of it, while no thread moves: 200 ms.
    gc.freeze()
    path = os.environ.get("UNDETERRED_READY_FILE")
    if path:
        Path(path).touch()
    systemd.notify(systemd.READY)
