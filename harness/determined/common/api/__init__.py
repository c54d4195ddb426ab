"""Talking to the master: sessions, logging in, errors."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from determined.common.api import authentication, errors
    from determined.common.api._response import Response
    from determined.common.api._session import Session
    from determined.common.api._tls import Cert
    from determined.common.api._url import canonicalize_master_url

__all__ = ["Cert", "Response", "Session", "authentication", "canonicalize_master_url", "errors"]

_HOME = {
    "Response": "determined.common.api._response",
    "Session": "determined.common.api._session",
    "Cert": "determined.common.api._tls",
    "canonicalize_master_url": "determined.common.api._url",
}


def __getattr__(name: str) -> object:
    import importlib

    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in ("authentication", "errors"):
        return importlib.import_module(f"determined.common.api.{name}")
    raise AttributeError(f"module 'determined.common.api' has no attribute {name!r}")
