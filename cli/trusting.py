"""Trusting a master's certificate when a user says so, as the published clients ask it: at a terminal only."""

from __future__ import annotations

import hashlib
import ssl
import sys
from urllib.parse import urlsplit

from cli import session
from determined import errors


def is_about(error: Exception) -> bool:
    """Whether a certificate that is not trusted was all that went wrong, and there is a user to ask."""
    is_there = sys.stdin.isatty() and sys.stderr.isatty()
    return is_there and isinstance(error, errors.MasterNotFoundException) and "CERTIFICATE_VERIFY_FAILED" in str(error)


def asked() -> bool:
    """Show what the master's certificate is known by, and trust it from now on if the user says so.

    Raises: OSError, if the master does not answer.
    """
    import typer

    url = session.master_url()
    certificate = _authority(url)
    known_by = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()
    typer.echo(
        f"The certificate of the master at {url} is not one that this machine trusts. Its fingerprint (SHA-256):\n"
        f"  sha256:{known_by}\nThe operator of the cluster knows it: `det agent join-token create` prints it too.",
        err=True,
    )
    if not typer.confirm("Trust it from now on?", err=True):
        return False
    from determined.common.api._certs import CertStore

    CertStore().set(url, certificate)
    return True


def _authority(url: str) -> str:
    """What the master says is the authority behind its certificate; else that certificate alone."""
    from determined.common.api import Cert, Session

    probe = Session(url, cert=Cert(noverify=True), max_tries=1)
    try:
        found = str(probe.get("/api/v1/undeterred/authority").json().get("certificate") or "")
    except errors.APIException:  # a master of another kind, or something in front of it
        found = ""
    finally:
        probe.close()
    if not found:
        parts = urlsplit(url)
        found = ssl.get_server_certificate((parts.hostname or "", parts.port or 443), timeout=10)
    return found
