"""Certificates that this user trusts, by the address of the master: `<config dir>/determined/certs.json`.

It is `{<url>: <PEM>}`, as the published clients of Determined write it when a user trusts a certificate.
"""

from __future__ import annotations

import os

from determined import errors
from determined.common.api._tokens import changing, config_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class CertStore:
    """The certificates that this user trusts. Several processes may use it at once."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path or os.path.join(config_dir(), "certs.json")

    def get(self, master: str) -> str | None:
        """What is trusted for `master`, in PEM.

        Raises:
            CorruptCertificateCacheException: The file is damaged, or can't be read.
        """
        return self._load().get(master) or None

    def set(self, master: str, certificates: str) -> None:
        """Trust certificates (PEM) for `master`, in the place of what was trusted before.

        Raises:
            CorruptCertificateCacheException: The file is damaged, or can't be read.
        """
        if self._load().get(master) == certificates:
            return
        with changing(self.path, self._load) as content:
            content[master] = certificates

    def _load(self) -> dict[str, Any]:
        import json

        try:
            with open(self.path, encoding="utf-8") as f:
                content: Any = json.load(f)
            if not isinstance(content, dict) or not all(isinstance(pem, str) for pem in content.values()):  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
                raise ValueError("it is no object of certificates by their master")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as e:
            raise errors.CorruptCertificateCacheException(
                f"the file of trusted certificates {self.path} can't be read: {e}; mend it, or remove it to trust none"
            ) from e
        return content  # pyright: ignore[reportUnknownVariableType]
