"""How every process reaches Temporal: its address, TLS, credentials, and the keys that payloads are encrypted with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import structlog
from grpc import aio
from temporalio.client import Client, Interceptor
from temporalio.converter import DataConverter
from temporalio.runtime import Runtime
from temporalio.service import TLSConfig

from api import tracing
from api.pem import Followed, certificates, check_pair, private_key
from api.settings import TemporalSettings
from api.temporal.log_ids import NamedLines
from workflows.converter import CONVERTER, encrypting
from workflows.encryption import Keys, parse_keys

log = structlog.get_logger()

_FOLLOW_S = 10.0


class Connection:
    """The connection of one process to Temporal.

    Args:
        settings: Where Temporal is, and how it knows us.
        credential: Shown with every call to a gateway, which is not Temporal itself.
        runtime: What its clients run in, if it is not the one of all.

    Raises:
        CantUse: A file of the settings can't be used.
    """

    def __init__(
        self, settings: TemporalSettings, credential: str | None = None, runtime: Runtime | None = None
    ) -> None:
        self.address = settings.temporal_address
        self.namespace = settings.temporal_namespace
        self._credential = credential
        self._runtime = runtime
        self._settings = settings
        self._tls = _tls(settings)
        self._api_key: Callable[[], str] | None = None
        if settings.temporal_api_key is not None:
            self._api_key = settings.temporal_api_key.get_secret_value
        elif settings.temporal_api_key_file is not None:
            self._api_key = Followed("temporal_api_key_file", settings.temporal_api_key_file, _api_key)
        #: the keys that payloads are encrypted with, as they are now; None: histories are not encrypted
        self.keys: Callable[[], Keys] | None = None
        if settings.temporal_encryption_keys_file is not None:
            self.keys = Followed("temporal_encryption_keys_file", settings.temporal_encryption_keys_file, parse_keys)

    @property
    def converter(self) -> DataConverter:
        """What turns values into payloads."""
        return CONVERTER if self.keys is None else encrypting(self.keys)

    async def client(self) -> Client:
        """A connected client. Raises: RuntimeError, if there is no answer."""
        metadata = {} if self._credential is None else {"authorization": f"Bearer {self._credential}"}
        return await Client.connect(
            self.address,
            namespace=self.namespace,
            data_converter=self.converter,
            rpc_metadata=metadata,
            tls=self._tls or False,
            api_key=None if self._api_key is None else self._api_key(),
            runtime=self._runtime,
            interceptors=_interceptors(),
        )

    async def follow_api_key(self, client: Client) -> None:
        """Show a new API key as soon as it is in its file; never returns."""
        while True:
            await asyncio.sleep(_FOLLOW_S)
            if self._api_key is not None and (key := self._api_key()) != client.api_key:
                client.api_key = key
                log.info("another API key is shown to Temporal from now on")

    def channel(self, options: Sequence[tuple[str, Any]]) -> aio.Channel:
        """A channel of gRPC, for what hands on calls of others. `metadata` goes with each call."""
        if self._tls is None:
            return aio.insecure_channel(self.address, options=options)
        if self._tls.domain:
            options = [*options, ("grpc.ssl_target_name_override", self._tls.domain)]
        tls = grpc.ssl_channel_credentials(
            self._tls.server_root_ca_cert, self._tls.client_private_key, self._tls.client_cert
        )
        return aio.secure_channel(self.address, tls, options=options)

    def metadata(self) -> list[tuple[str, str]]:
        """What each call over `channel` shows to Temporal: the API key as it is now."""
        if self._api_key is None:
            return []
        return [("authorization", f"Bearer {self._api_key()}"), ("temporal-namespace", self.namespace)]


def _interceptors() -> list[Interceptor]:
    """What a client and its workers do around each call: log lines get ids, and traces, if there are any, go on."""
    tracer = tracing.tracer()
    if tracer is None:
        return [NamedLines()]
    from temporalio.contrib.opentelemetry import TracingInterceptor

    return [TracingInterceptor(tracer), NamedLines()]


def _api_key(text: str) -> str:
    key = text.strip()
    if not key or not key.isprintable() or " " in key:
        raise ValueError("expected a file with an API key in one line, and nothing else")
    return key


def _tls(settings: TemporalSettings) -> TLSConfig | None:
    if not settings.has_tls:
        return None
    ca = certificate = key = None
    if path := settings.temporal_ca_file:
        ca = certificates("temporal_ca_file", path)
    if path := settings.temporal_cert_file:
        certificate = certificates("temporal_cert_file", path)
    if path := settings.temporal_key_file:
        key = private_key("temporal_key_file", path)
        check_pair(
            ("temporal_cert_file", settings.temporal_cert_file or ""),
            ("temporal_key_file", path),
            certificate or b"",
            key,
        )
    return TLSConfig(
        server_root_ca_cert=ca,
        client_cert=certificate,
        client_private_key=key,
        domain=settings.temporal_server_name or None,
    )
