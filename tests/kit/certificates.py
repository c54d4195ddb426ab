"""Certificates for tests: an authority of a test's own, and what it issues for servers and clients of this machine."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Authority:
    """An authority whose certificate is `file`, in PEM."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        ca = _builder(self._name, self._name, self._key).add_extension(x509.BasicConstraints(True, None), True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(ca.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(
        self,
        name: str,
        *hosts: str,
        addresses: Sequence[str] = ("127.0.0.1",),
        organization: str = "",
        is_local: bool = True,
        days: int = 1,
    ) -> tuple[Path, Path]:
        """The files of a certificate for a server and client of this machine, and of its key.

        Args:
            name: Of the one who has it, and of the files.
            hosts: Names of the server; default: that of a Temporal.
            addresses: Of the server.
            organization: That the client belongs to.
            is_local: Whether it is for this machine too, and not for `hosts` alone.
            days: Until it expires; if negative, it has expired.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts or ("temporal.test",)]
        if is_local:
            names += [x509.DNSName("localhost"), *(x509.IPAddress(ip_address(each)) for each in addresses)]
        certificate = (
            _builder(_name(name, organization), self._name, key, days)
            .add_extension(x509.SubjectAlternativeName(names), False)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False
            )
            .sign(self._key, hashes.SHA256())
        )
        of_certificate, of_key = self._folder / f"{name}.pem", self._folder / f"{name}-key.pem"
        of_certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        of_key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return of_certificate, of_key


def _name(name: str, organization: str = "") -> x509.Name:
    of_organization = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)] if organization else []
    return x509.Name([*of_organization, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int = 1
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    ends = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, ends) - datetime.timedelta(hours=1))
        .not_valid_after(ends)
    )
