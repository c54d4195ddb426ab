"""Clients of OAuth: programs that may manage a cluster's users."""

from __future__ import annotations

from determined.common.experimental._rows import Shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Oauth2ScimClient(Shown):
    """A client of OAuth for SCIM, as other clusters than ours have them.

    Attributes:
        id, secret: What the client identifies itself with; the secret is returned only once, at creation.
        domain, name: As they are called.
    """

    def __init__(self, id: str, secret: str, domain: str, name: str) -> None:
        self.id = id
        self.secret = secret
        self.domain = domain
        self.name = name

    def row(self) -> dict[str, Any]:
        """As a row of a table; the secret is left out."""
        return {"id": self.id, "domain": self.domain, "name": self.name}
