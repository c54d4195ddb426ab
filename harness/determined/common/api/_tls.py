"""How far the master's certificate is trusted."""

from __future__ import annotations

import os

from determined.errors import InvalidConfigurationException

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    import ssl

NO_VERIFY = "noverify"


class Cert:
    """What to check of the master's certificate.

    Args:
        cert_path: A PEM file to trust instead of the system's authorities; "noverify" is the same as `noverify=True`.
        cert_name: The host name that the certificate must be for, when it differs from the address.
        noverify: Check nothing at all.
    """

    def __init__(self, cert_path: str | None = None, cert_name: str | None = None, noverify: bool = False) -> None:
        self.noverify = noverify or cert_path == NO_VERIFY
        self.cert_path = None if self.noverify else cert_path
        self.cert_name = cert_name
        self._trusted: str | None = None  # certificates (PEM) besides the system's authorities
        self._context: ssl.SSLContext | None = None

    @classmethod
    def from_env(cls) -> Cert:
        """What `DET_MASTER_CERT_FILE` and `DET_MASTER_CERT_NAME` say."""
        return cls(os.environ.get("DET_MASTER_CERT_FILE") or None, os.environ.get("DET_MASTER_CERT_NAME") or None)

    @classmethod
    def of(cls, master: str) -> Cert:
        """What the environment says; without it, the system's authorities and what this user trusts for that master.

        Args:
            master: Its address, as `canonicalize_master_url` spells it.

        Raises:
            CorruptCertificateCacheException: The file of trusted certificates is damaged.
        """
        cert = cls.from_env()
        if cert.cert_path is None and not cert.noverify and master.startswith("https://"):
            from determined.common.api._certs import CertStore

            cert._trusted = CertStore().get(master)
        return cert

    def context(self) -> ssl.SSLContext:
        """The TLS context, made once.

        Raises:
            InvalidConfigurationException: The certificate file can't be read.
        """
        if self._context is None:
            import ssl

            cert_name = self.cert_name

            class Context(ssl.SSLContext):
                # httpx checks the address that it connects to, and behind a proxy knows no other.
                def wrap_socket(
                    self,
                    sock: socket.socket,
                    server_side: bool = False,
                    do_handshake_on_connect: bool = True,
                    suppress_ragged_eofs: bool = True,
                    server_hostname: str | bytes | None = None,
                    session: ssl.SSLSession | None = None,
                ) -> ssl.SSLSocket:
                    return super().wrap_socket(
                        sock, server_side, do_handshake_on_connect, suppress_ragged_eofs, cert_name, session
                    )

                def wrap_bio(
                    self,
                    incoming: ssl.MemoryBIO,
                    outgoing: ssl.MemoryBIO,
                    server_side: bool = False,
                    server_hostname: str | bytes | None = None,
                    session: ssl.SSLSession | None = None,
                ) -> ssl.SSLObject:
                    return super().wrap_bio(incoming, outgoing, server_side, cert_name, session)

            try:
                context = ssl.create_default_context(cafile=self.cert_path)
                if cert_name:
                    context = Context(ssl.PROTOCOL_TLS_CLIENT)
                    if self.cert_path:
                        context.load_verify_locations(self.cert_path)
                    else:
                        context.load_default_certs()
                if self._trusted:
                    # what was trusted may be the master's own certificate, without the authority behind it
                    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
                    context.load_verify_locations(cadata=self._trusted)
            except (OSError, ssl.SSLError, ValueError) as e:
                raise InvalidConfigurationException(
                    f"the master's certificate file {self.cert_path or 'certs.json'!r} can't be read: {e}; "
                    "it must be a PEM file (DET_MASTER_CERT_FILE)"
                ) from e
            if self.noverify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            self._context = context
        return self._context
