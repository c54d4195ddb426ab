"""`AsyncDetermined`: what `Determined` is, for programs on asyncio."""

from __future__ import annotations

from determined.common.api._async import _login
from determined.common.api._tls import Cert
from determined.common.experimental._async._master import AsyncMaster

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determined.common.api._async._session import AsyncSession


class AsyncDetermined(AsyncMaster):
    """One master, in the name of one user. Made by `await AsyncDetermined.login(…)`; to be closed in the end.

    Example::

        async with await AsyncDetermined.login() as det:
            print(await det.whoami())
    """

    @classmethod
    async def login(
        cls,
        master: str | None = None,
        user: str | None = None,
        password: str | None = None,
        cert_path: str | None = None,
        cert_name: str | None = None,
        noverify: bool = False,
    ) -> AsyncDetermined:
        """Log in, with what `Determined` takes and in the same order of precedence.

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
        cert = Cert(cert_path, cert_name, noverify) if cert_path or cert_name or noverify else None
        return cls(await _login.login(master, user, password, cert))

    @classmethod
    def from_session(cls, session: AsyncSession) -> AsyncDetermined:
        """With a session that is logged in already."""
        return cls(session)

    async def __aenter__(self) -> AsyncDetermined:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
