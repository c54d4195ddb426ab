"""Secrets in configurations, of checkpoint storage and of a registry: sent to agents, redacted for all users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import orjson

from api.auth.redaction import MASK

#: The way to a section, and which of its fields are secret.
_SECRETS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("checkpoint_storage",), ("access_key", "secret_key", "connection_string", "credential", "account_url")),
    (("environment", "registry_auth"), ("password", "auth", "identitytoken", "registrytoken")),
)


def shown(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without its secrets."""
    masked = dict(config)
    for way, secrets in _found(config):
        masked = _replaced(masked, way, dict.fromkeys(secrets, MASK))
    return masked


def named(config: Mapping[str, Any]) -> list[str]:
    """The fields of a configuration that hold secrets, as `checkpoint_storage.secret_key`."""
    return [".".join((*way, field)) for way, secrets in _found(config) for field in secrets]


def shown_texts(read: Mapping[str, Any], config: str, original: str) -> tuple[str, str]:
    """A configuration as JSON and the text that a user sent for it, both without its secrets.

    Args:
        read: the configuration; most have no secret, and their texts come back as they are.
        config: its JSON.
        original: what its user sent.
    """
    values = [value for _, secrets in _found(read) for value in secrets.values()]
    if not values:
        return config, original
    for value in values:
        original = original.replace(value, MASK)
    return orjson.dumps(shown(read)).decode(), original


def without_registry_auth(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as a container may have it: an image is pulled before there is a container."""
    if not config.get("environment"):
        return dict(config)
    return _replaced(config, ("environment",), {"registry_auth": None})


def _found(config: Mapping[str, Any]) -> list[tuple[tuple[str, ...], dict[str, str]]]:
    """The sections that have secrets, with these."""
    found: list[tuple[tuple[str, ...], dict[str, str]]] = []
    for way, fields in _SECRETS:
        section: Any = config
        for name in way:
            section = cast("Mapping[str, Any]", section).get(name) if isinstance(section, Mapping) else None
        if isinstance(section, Mapping):
            values = {field: cast("Mapping[str, Any]", section).get(field) for field in fields}
            secrets = {
                field: value
                for field, value in values.items()
                # an account's address is a secret when it bears a token
                if isinstance(value, str) and value and (field != "account_url" or "?" in value)
            }
            if secrets:
                found.append((way, secrets))
    return found


def _replaced(config: Mapping[str, Any], way: tuple[str, ...], fields: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with other values in one of its sections, which must be there."""
    if not way:
        return {**config, **fields}
    return {**config, way[0]: _replaced(config[way[0]], way[1:], fields)}
