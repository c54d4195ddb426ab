"""Logging in, and the cache of tokens that `det user login` fills."""

from __future__ import annotations

from determined.common.api._login import DEFAULT_USER, login, logout, request_token
from determined.common.api._tokens import TokenStore, config_dir, hash_password

__all__ = ["DEFAULT_USER", "TokenStore", "config_dir", "hash_password", "login", "logout", "request_token"]
