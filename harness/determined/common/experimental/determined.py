"""`Determined`: everything that can be asked of one master."""

from __future__ import annotations

from determined.common.api import authentication
from determined.common.api._tls import Cert
from determined.common.experimental._master import Master

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determined.common.api._session import Session


class Determined(Master):
    """One master, in the name of one user.

    Args:
        master: Its address; by default `DET_MASTER`, `DET_MASTER_ADDR`, or localhost:8080.
        user: Who; by default who logged in with `det user login`, then `determined`.
        password: The password; not needed after `det user login`.
        cert_path: A PEM file to check the master's certificate against.
        cert_name: The name that the certificate must be for, if it differs from the address.
        noverify: Do not check the certificate.

    Raises:
        UnauthenticatedException: Nobody could be logged in.
        MasterNotFoundException: No answer.
    """

    def __init__(
        self,
        master: str | None = None,
        user: str | None = None,
        password: str | None = None,
        cert_path: str | None = None,
        cert_name: str | None = None,
        noverify: bool = False,
    ) -> None:
        cert = Cert(cert_path, cert_name, noverify) if cert_path or cert_name or noverify else None
        super().__init__(authentication.login(master, user, password, cert))

    @classmethod
    def from_session(cls, session: Session) -> Determined:
        """With a session that is logged in already."""
        self = cls.__new__(cls)
        Master.__init__(self, session)
        return self

    def __enter__(self) -> Determined:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
