"""One spelling for each master, so that the token cache knows it again."""

from __future__ import annotations

import os
from urllib.parse import quote, urlencode, urlsplit

from determined.errors import InvalidConfigurationException

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

DEFAULT_MASTER = "localhost:8080"


def default_master_url() -> str:
    """The master that the environment names: `DET_MASTER`, then `DET_MASTER_ADDR`, then localhost:8080."""
    return os.environ.get("DET_MASTER") or os.environ.get("DET_MASTER_ADDR") or DEFAULT_MASTER


def canonicalize_master_url(url: str) -> str:
    """`scheme://host:port[/prefix]` for what a person typed: `host`, `host:port`, `https://host/`.

    Without a scheme, http is meant and port 8080; with one, its own port (80, 443).

    Raises:
        InvalidConfigurationException: `url` does not name a master.
    """
    text = url.strip()
    if "://" not in text:
        text, default_port = f"http://{text}", 8080
    else:
        default_port = 443 if text.lower().startswith("https") else 80
    try:
        parts = urlsplit(text)
        port = parts.port
        host = parts.hostname
    except ValueError as e:
        raise InvalidConfigurationException(f"the master's address {url!r} is not valid: {e}") from e
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidConfigurationException(
            f"the master's address {url!r} is not valid; it must look like http://host:8080 (see DET_MASTER, --master)"
        )
    if ":" in host:
        host = f"[{host}]"
    return f"{parts.scheme}://{host}:{port or default_port}{parts.path.rstrip('/')}"


def path_of(*parts: str | int) -> str:
    """A path below the master's address: each part encoded, so that an id can't become another route."""
    return "/" + "/".join(quote(str(p), safe="") for p in parts)


def api_path(*parts: str | int) -> str:
    """`/api/v1/` and `parts`, each encoded."""
    return "/api/v1" + path_of(*parts)


def encode_query(params: Mapping[str, Any] | None) -> str:
    """The query string with its `?`, or an empty string."""
    pairs: list[tuple[str, str]] = []
    for name, value in (params or {}).items():
        for item in value if isinstance(value, (list, tuple, set)) else [value]:  # pyright: ignore[reportUnknownVariableType]
            if item is not None:
                pairs.append((name, str(item).lower() if isinstance(item, bool) else str(item)))  # pyright: ignore[reportUnknownArgumentType]
    return "?" + urlencode(pairs) if pairs else ""
