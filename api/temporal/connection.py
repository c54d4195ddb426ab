"""How every process reaches Temporal: its address, TLS, credentials, and the keys that payloads are encrypted with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from grpc import aio
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.runtime import Runtime
from temporalio.service import TLSConfig

from api.settings import TemporalSettings
from workflows.converter import CONVERTER, encrypting
from workflows.encryption import Keys, parse_keys

log = structlog.get_logger()

_FOLLOW_S = 10.0

Value = TypeVar("Value")


class CantConnect(Exception):
    """A file that a setting names can't be used. The message names the setting and the file."""


class Connection:
    """The connection of one process to Temporal.

    Args:
        settings: Where Temporal is, and how it knows us.
        credential: Shown with every call to a gateway, which is not Temporal itself.
        runtime: What its clients run in, if it is not the one of all.

    Raises:
        CantConnect: A file of the settings can't be used.
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
            self._api_key = _File("temporal_api_key_file", settings.temporal_api_key_file, _api_key)
        #: the keys that payloads are encrypted with, as they are now; None: histories are not encrypted
        self.keys: Callable[[], Keys] | None = None
        if settings.temporal_encryption_keys_file is not None:
            self.keys = _File("temporal_encryption_keys_file", settings.temporal_encryption_keys_file, parse_keys)

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


class _File(Generic[Value]):
    """What a file holds now. It is read again once it changed; a text that can't be used is logged and not taken."""

    def __init__(self, setting: str, path: str, parse: Callable[[str], Value]) -> None:
        self._setting, self._path, self._parse = setting, path, parse
        self._seen = self._stamp()
        self._value = self._parsed()

    def __call__(self) -> Value:
        try:
            stamp = self._stamp()
            if stamp != self._seen:
                self._seen = stamp
                self._value = self._parsed()
                log.info("a file was read again", setting=self._setting, path=self._path)
        except CantConnect as error:
            log.error("the value from before is used on", reason=str(error))
        return self._value

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = Path(self._path).stat()
        except OSError as error:
            raise _unreadable(self._setting, self._path, error) from None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _parsed(self) -> Value:
        try:
            return self._parse(_read(self._setting, self._path).decode())
        except ValueError as error:  # of the parser, or UnicodeDecodeError
            raise CantConnect(f"{self._setting}: {self._path!r}: {error}") from None


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
        ca = _certificates("temporal_ca_file", path)
    if path := settings.temporal_cert_file:
        certificate = _certificates("temporal_cert_file", path)
    if path := settings.temporal_key_file:
        key = _key("temporal_key_file", path)
        _check_pair(settings, certificate or b"", key)
    return TLSConfig(
        server_root_ca_cert=ca,
        client_cert=certificate,
        client_private_key=key,
        domain=settings.temporal_server_name or None,
    )


def _certificates(setting: str, path: str) -> bytes:
    data = _read(setting, path)
    try:
        x509.load_pem_x509_certificates(data)
    except ValueError:
        raise CantConnect(f"{setting}: {path!r}: expected a file with certificates in PEM") from None
    return data


def _key(setting: str, path: str) -> bytes:
    data = _read(setting, path)
    try:
        load_pem_private_key(data, None)
    except (ValueError, TypeError):  # TypeError: it has a password
        raise CantConnect(
            f"{setting}: {path!r}: expected a file with a private key in PEM, without a password"
        ) from None
    return data


def _check_pair(settings: TemporalSettings, certificate: bytes, key: bytes) -> None:
    public = x509.load_pem_x509_certificates(certificate)[0].public_key()
    if public != load_pem_private_key(key, None).public_key():
        raise CantConnect(
            f"temporal_key_file: {settings.temporal_key_file!r}: expected the key of the first certificate in "
            f"{settings.temporal_cert_file!r} (temporal_cert_file)"
        )


def _read(setting: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _unreadable(setting, path, error) from None


def _unreadable(setting: str, path: str, error: OSError) -> CantConnect:
    return CantConnect(f"{setting}: {path!r}: expected a file that this process can read: {error.strerror}")
