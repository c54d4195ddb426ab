"""Who asks which cluster: the session of this call of `det`, made when a command first needs it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from determined.common.api import Session, authentication, canonicalize_master_url
from determined.common.api._url import default_master_url


class _Chosen:
    master: str | None = None
    user: str | None = None
    session: Session | None = None


_chosen = _Chosen()  # one process, one command: what its global options said


def configure(master: str | None, user: str | None) -> None:
    """Take the global options `--master` and `--user`."""
    close()
    _chosen.master, _chosen.user = master, user


def master_url() -> str:
    """The cluster's address, in full."""
    return canonicalize_master_url(_chosen.master or default_master_url())


def wanted_user() -> str | None:
    """What `--user` said."""
    return _chosen.user


def get() -> Session:
    """The session, logged in. Raises: UnauthenticatedException, MasterNotFoundException."""
    if _chosen.session is None:
        _chosen.session = authentication.login(_chosen.master, _chosen.user)
    return _chosen.session


def at_hand() -> Session | None:
    """A session by the token that was kept or is in the environment, whether or not it is still good; None without one.

    Making it asks nobody; each of its requests is tried once only.
    """
    from determined.common.api import Cert

    url = master_url()
    store = authentication.TokenStore()
    user = _chosen.user or os.environ.get("DET_USER") or store.active_user(url)
    token = store.token(url, user) if user else None
    if token is None and _chosen.user is None:
        token = os.environ.get("DET_USER_TOKEN")
    return Session(url, token=token, cert=Cert.of(url), max_tries=1) if token else None


def anonymous() -> Session:
    """A session for the few things that need no login."""
    if _chosen.session is None:
        from determined.common.api import Cert

        url = master_url()
        _chosen.session = Session(url, cert=Cert.of(url), max_tries=2)
    return _chosen.session


def release_of(info: Mapping[str, Any]) -> str:
    """The cluster's release, by what `/api/v1/master` says. Its `version` is that of the API that it speaks."""
    return str(info.get("undeterredVersion") or info.get("version") or "of unknown version")


def fetch(path: str, **params: Any) -> dict[str, Any]:
    """GET a route of the API below `/api/v1`."""
    return get().get(f"/api/v1/{path}", params).json()


def fetch_all(path: str, key: str, limit: int | None = None, **params: Any) -> list[dict[str, Any]]:
    """All items of a list that comes in pages, or the first `limit`."""
    from determined.common.experimental._wire import pages

    return list(pages(get(), f"/api/v1/{path}", params, key, limit))


def close() -> None:
    """Close the connections."""
    if _chosen.session is not None:
        _chosen.session.close()
        _chosen.session = None
