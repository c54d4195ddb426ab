"""Connecting to Temporal, and ending a process that did."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import structlog
from pydantic import BaseModel, ValidationError
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from api.settings import from_environment
from workers.secret_environment import take
from workflows.converter import CONVERTER
from workflows.names import SEARCH_ATTRIBUTES

log = structlog.get_logger()

_TYPES = {
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
}


class GivenUp(Exception):
    """A worker process can't do its work. The message says why, for the user who started it."""


async def connect(address: str, namespace: str, stop: asyncio.Event, *, credential: str | None = None) -> Client | None:
    """The connected client, however long Temporal takes to answer; None if asked to stop before.

    A credential is shown with every call, to a gateway: Temporal itself asks for none.
    """
    metadata = {} if credential is None else {"authorization": f"Bearer {credential}"}
    pause = 0.05
    while not stop.is_set():
        try:
            return await Client.connect(address, namespace=namespace, data_converter=CONVERTER, rpc_metadata=metadata)
        except RuntimeError as error:
            log.info("Temporal does not answer yet", address=address, error=str(error))
        try:
            await asyncio.wait_for(stop.wait(), pause)
        except TimeoutError:
            pause = min(2.0, pause * 1.1)  # a tenth of what it took so far: a start is not held up by this
    return None


async def ensure_search_attributes(client: Client) -> None:
    """Register what operators filter by, where this Temporal lacks it (the embedded one is started with them)."""
    listed = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    missing = {name: _TYPES[kind] for name, kind in SEARCH_ATTRIBUTES.items() if name not in listed.custom_attributes}
    if not missing:
        return
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise
    log.info("search attributes registered", names=sorted(missing))


def run(
    settings_model: type[BaseModel],
    main: Callable[[Any, asyncio.Event], Coroutine[Any, Any, None]],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> NoReturn:
    """Run a worker process until SIGTERM or SIGINT, then leave."""
    configure_logging()
    try:
        settings = from_environment(settings_model)
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_input=False):
            name = "_".join(str(part) for part in problem["loc"]).upper()
            print(f"UNDETERRED_{name}: {problem['msg']}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    take("UNDETERRED_ADMIN_PASSWORD")  # it is in the settings now
    run_until_signal(main, settings, loop_factory=loop_factory)


def run_until_signal(
    main: Callable[[Any, asyncio.Event], Coroutine[Any, Any, None]],
    settings: Any,
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> NoReturn:
    """Run `main`, which leaves when its event is set, until SIGTERM or SIGINT; ends this process."""
    configure_logging()

    async def with_signals() -> None:
        stop = asyncio.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, stop.set)
        await main(settings, stop)

    code = 0
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(with_signals())
    except GivenUp as error:
        log.error("this process ends", reason=str(error))
        code = 1
    # the SDK's native objects must go while the interpreter is whole, or the process may abort at its end
    gc.collect()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def mark_ready() -> None:
    """Notify the process that started this one that it does its work now."""
    path = os.environ.get("UNDETERRED_READY_FILE")
    if path:
        Path(path).touch()


def configure_logging() -> None:
    """Structured lines on stderr, for this code and for the SDK's."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s %(message)s")
    for chatty in ("httpx", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
