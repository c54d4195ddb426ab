"""Certificates and keys in files that settings name: read, checked, and read again once they change."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from api.settings import ServingSettings
from determined.common.api import Cert

log = structlog.get_logger()

#: How soon a new certificate in its files is served, in seconds.
FOLLOW_S = 10.0

Value = TypeVar("Value")
Stamp = tuple[int, int, int]


class CantUse(Exception):
    """A file that a setting names can't be used. The message names the setting and the file."""


class Followed(Generic[Value]):
    """What a file holds now. It is read again once it changed; a text that can't be used is logged and not taken."""

    def __init__(self, setting: str, path: str, parse: Callable[[str], Value]) -> None:
        self._setting, self._path, self._parse = setting, path, parse
        self._seen = stamp(setting, path)
        self._value = self._parsed()

    def __call__(self) -> Value:
        try:
            found = stamp(self._setting, self._path)
            if found != self._seen:
                self._seen = found
                self._value = self._parsed()
                log.info("a file was read again", setting=self._setting, path=self._path)
        except CantUse as error:
            log.error("the value from before is used on", reason=str(error))
        return self._value

    def _parsed(self) -> Value:
        try:
            return self._parse(read(self._setting, self._path).decode())
        except ValueError as error:  # of the parser, or UnicodeDecodeError
            raise CantUse(f"{self._setting}: {self._path!r}: {error}") from None


class ServedCertificate:
    """The certificate that a process shows to its clients; a new one in its files needs no restart.

    Raises:
        CantUse: A file can't be used, or the two are no pair.
    """

    def __init__(self, cert_file: str, key_file: str) -> None:
        self._files = ("tls_cert_file", cert_file), ("tls_key_file", key_file)
        self._seen = self._stamps()
        self.certificate, self.key = self._read()
        #: what uvicorn serves with: each handshake takes what was loaded last
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(cert_file, key_file)

    def context_for(self, *_: object) -> ssl.SSLContext:
        """The context, as uvicorn asks for it."""
        return self.context

    def renew(self) -> bool:
        """Take what the files hold now, if that is another pair; whether it was. What can't be used is logged."""
        try:
            found = self._stamps()
            if found == self._seen:
                return False
            pair = self._read()  # half of a new one is no pair: the next look finds the whole
            self.context.load_cert_chain(self._files[0][1], self._files[1][1])
        except (CantUse, ssl.SSLError, OSError) as error:
            log.warning("the certificate from before is served on", reason=str(error))
            return False
        self._seen, (self.certificate, self.key) = found, pair
        log.info("another certificate is served from now on", path=self._files[0][1])
        return True

    async def follow(self) -> None:
        """Serve a new certificate soon after it is in its files; never returns."""
        while True:
            await asyncio.sleep(FOLLOW_S)
            await asyncio.to_thread(self.renew)

    @property
    def name(self) -> str:
        """A name that the certificate is for."""
        first = x509.load_pem_x509_certificates(self.certificate)[0]
        try:
            names = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return ""
        # of a wildcard one of those that it stands for: it is not for the name behind the asterisk alone
        named = [name.replace("*", "undeterred", 1) for name in names.get_values_for_type(x509.DNSName)]
        return next(iter([*named, *map(str, names.get_values_for_type(x509.IPAddress))]), "")

    def _stamps(self) -> list[Stamp]:
        return [stamp(setting, path) for setting, path in self._files]

    def _read(self) -> tuple[bytes, bytes]:
        (of_certificate, cert_file), (of_key, key_file) = self._files
        found = certificates(of_certificate, cert_file), private_key(of_key, key_file)
        check_pair(self._files[0], self._files[1], *found)
        return found


def authority_in(chain: bytes) -> bytes:
    """The authority behind a certificate (PEM), if it is the last in its file; empty: a public one, or unknown."""
    last = x509.load_pem_x509_certificates(chain)[-1]
    return last.public_bytes(Encoding.PEM) if last.issuer == last.subject else b""


def fingerprint(certificate: bytes) -> str:
    """What a certificate (PEM) is known by: `sha256:` and 64 hexadecimal digits."""
    return "sha256:" + x509.load_pem_x509_certificate(certificate).fingerprint(hashes.SHA256()).hex()


def served_by(settings: ServingSettings) -> ServedCertificate | None:
    """What a process serves with; None without TLS. Raises: CantUse."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return ServedCertificate(settings.tls_cert_file, settings.tls_key_file)


def stamp(setting: str, path: str) -> Stamp:
    """What changes when a file does. Raises: CantUse."""
    try:
        found = Path(path).stat()
    except OSError as error:
        raise _unreadable(setting, path, error) from None
    return found.st_mtime_ns, found.st_size, found.st_ino


def certificates(setting: str, path: str) -> bytes:
    """A file with certificates. Raises: CantUse."""
    data = read(setting, path)
    try:
        x509.load_pem_x509_certificates(data)
    except ValueError:
        raise CantUse(f"{setting}: {path!r}: expected a file with certificates in PEM") from None
    return data


def private_key(setting: str, path: str) -> bytes:
    """A file with a private key. Raises: CantUse."""
    data = read(setting, path)
    try:
        load_pem_private_key(data, None)
    except (ValueError, TypeError):  # TypeError: it has a password
        raise CantUse(f"{setting}: {path!r}: expected a file with a private key in PEM, without a password") from None
    return data


def check_pair(of_certificate: tuple[str, str], of_key: tuple[str, str], certificate: bytes, key: bytes) -> None:
    """A key is that of a certificate; each is named by its setting and its path. Raises: CantUse."""
    public = x509.load_pem_x509_certificates(certificate)[0].public_key()
    if public != load_pem_private_key(key, None).public_key():
        raise CantUse(
            f"{of_key[0]}: {of_key[1]!r}: expected the key of the first certificate in "
            f"{of_certificate[1]!r} ({of_certificate[0]})"
        )


def trusting(setting: str, path: str | None, name: str | None = None) -> ssl.SSLContext:
    """What checks a server's certificate.

    Args:
        setting: It names the file.
        path: Of the authorities that count, and no others; None: the system's.
        name: That the certificate must be for; None: the host that is connected to.

    Raises:
        CantUse: The file has no certificates.
    """
    if path is not None:
        certificates(setting, path)
    return Cert(path, name).context()


def read(setting: str, path: str) -> bytes:
    """A file that a setting names. Raises: CantUse."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _unreadable(setting, path, error) from None


def _unreadable(setting: str, path: str, error: OSError) -> CantUse:
    return CantUse(f"{setting}: {path!r}: expected a file that this process can read: {error.strerror}")
