"""The certificate of an embedded cluster: one that it makes, with an authority of its own, or one that it is given."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from api.pem import CantUse, ServedCertificate, authority_in, certificates

#: Browsers take none of a longer life.
_LIFE = datetime.timedelta(days=397)
_LIFE_OF_AUTHORITY = datetime.timedelta(days=3650)
#: With less left, a start makes a new one.
_LEFT = datetime.timedelta(days=90)
#: What containers of Docker call their host.
_FROM_CONTAINERS = "host.docker.internal"


@dataclass(frozen=True)
class Served:
    """What a cluster serves with.

    Attributes:
        cert_file: The certificate, and what it was signed by, below it.
        key_file: Its private key.
        ca_file: The authority behind it, for the cluster's own clients; None: one of the system's.
        name: That it is for, where clients of this machine would ask for another; empty: it is for localhost too.
        ends: When it expires.
    """

    cert_file: str
    key_file: str
    ca_file: str | None
    name: str
    ends: datetime.datetime


def given(cert_file: str, key_file: str, ca_file: str | None) -> Served:
    """A certificate from elsewhere. Raises: CantUse, if a file can't be used, or it has expired."""
    served = ServedCertificate(cert_file, key_file)
    leaf = x509.load_pem_x509_certificates(served.certificate)[0]
    if leaf.not_valid_after_utc <= _now():
        raise CantUse(f"tls_cert_file: {cert_file!r}: it expired at {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    if ca_file is not None:
        certificates("tls_ca_file", ca_file)
    elif authority_in(served.certificate):
        ca_file = cert_file
    is_local = {"localhost", "127.0.0.1"} <= _names_of(leaf)
    return Served(cert_file, key_file, ca_file, "" if is_local else served.name, leaf.not_valid_after_utc)


def made(folder: Path, names: Iterable[str]) -> Served:
    """One of the cluster's own, for these host names and addresses; another if it lacks one, or ends within 90 days.

    The authority stays: clients that trust it trust what it signs later. Raises: OSError.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    authority, key = _authority(folder)
    cert_file, key_file, ca_file = folder / "served.pem", folder / "served-key.pem", folder / "authority.pem"
    wanted = {_usual(name) for name in names}
    with contextlib.suppress(CantUse):
        there = ServedCertificate(str(cert_file), str(key_file))
        leaf = x509.load_pem_x509_certificates(there.certificate)[0]
        is_of_authority = authority_in(there.certificate) == authority.public_bytes(Encoding.PEM)
        if is_of_authority and wanted <= _names_of(leaf) and leaf.not_valid_after_utc > _now() + _LEFT:
            return Served(str(cert_file), str(key_file), str(ca_file), "", leaf.not_valid_after_utc)
    own = ec.generate_private_key(ec.SECP256R1())
    leaf = (
        _builder("Undeterred", authority.subject, own.public_key(), _LIFE)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in sorted(wanted)]), False)
        .add_extension(x509.BasicConstraints(False, None), True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False)
        .sign(key, hashes.SHA256())
    )
    # the key first: a pair that does not fit is not taken by those that serve, and the next look finds the whole
    _write(key_file, _private(own))
    _write(cert_file, leaf.public_bytes(Encoding.PEM) + authority.public_bytes(Encoding.PEM))
    return Served(str(cert_file), str(key_file), str(ca_file), "", leaf.not_valid_after_utc)


def names_of_host() -> set[str]:
    """The names and addresses under which this host may be reached."""
    found = {"localhost", _FROM_CONTAINERS, socket.gethostname(), socket.getfqdn()}
    for addresses in psutil.net_if_addrs().values():
        found |= {each.address for each in addresses if each.family in (socket.AF_INET, socket.AF_INET6)}
    return {name for name in found if _is_name(name)}


def _is_name(text: str) -> bool:
    return bool(text) and "%" not in text and text.isascii()  # addresses of a link have a zone, and are no addresses


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    cert_file, key_file = folder / "authority.pem", folder / "authority-key.pem"
    if cert_file.exists() and key_file.exists():
        found = x509.load_pem_x509_certificate(cert_file.read_bytes())
        key = load_pem_private_key(key_file.read_bytes(), None)
        if isinstance(key, ec.EllipticCurvePrivateKey) and found.not_valid_after_utc > _now() + _LIFE:
            return found, key
    key = ec.generate_private_key(ec.SECP256R1())
    name = f"Undeterred of {socket.gethostname()}"[:64]
    public = key.public_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    found = (
        _builder(name, subject, public, _LIFE_OF_AUTHORITY)
        .add_extension(x509.BasicConstraints(True, 0), True)
        .add_extension(usage, True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
        .sign(key, hashes.SHA256())
    )
    _write(key_file, _private(key))
    _write(cert_file, found.public_bytes(Encoding.PEM))
    return found, key


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: datetime.timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - datetime.timedelta(hours=1))  # clocks of other hosts may be behind
        .not_valid_after(_now() + life - datetime.timedelta(hours=1))
    )


def _usual(name: str) -> str:
    """One spelling for each name and address."""
    try:
        return str(ip_address(name))
    except ValueError:
        return name.lower()


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names_of(leaf: x509.Certificate) -> set[str]:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {name.lower() for name in names.get_values_for_type(x509.DNSName)} | {
        str(address) for address in names.get_values_for_type(x509.IPAddress)
    }


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, and for this user alone."""
    partial = path.with_suffix(".tmp")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    os.replace(partial, path)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
