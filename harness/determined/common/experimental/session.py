"""The session's older address."""

from __future__ import annotations

from determined.common.api._session import Session

__all__ = ["Session"]
