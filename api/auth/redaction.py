"""Redacts secrets and removes control characters, in log lines and in the configuration that users read."""

from __future__ import annotations

import re
from typing import Any, cast

MASK = "********"
_SECRET_NAME = re.compile(r"(?i)pass(word|wd)?$|secret|token$|authorization|cookie|api_?key|private_?key|credential")
_BEARER = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]+")
_USERINFO = re.compile(r"://[^/\s@]*@")
_ASSIGNED = re.compile(r"(?i)\b((?:password|passwd|secret|token|api_?key)\s*[=:]\s*)[^\s,;'\"]+")
#: Shorter ones are words that stand in any line.
_LEAST_SECRET = 6


class Redactor:
    """Masks what looks like a secret, and the secrets that are known."""

    def __init__(self, known: list[str]) -> None:
        self._known = sorted({secret for secret in known if len(secret) >= _LEAST_SECRET}, key=len, reverse=True)

    def text(self, value: str) -> str:
        """A text without secrets."""
        for secret in self._known:
            value = value.replace(secret, MASK)
        value = _USERINFO.sub(f"://{MASK}@", value)
        value = _BEARER.sub(rf"\g<1>{MASK}", value)
        return _ASSIGNED.sub(rf"\g<1>{MASK}", value)

    def named(self, name: str, value: Any) -> Any:
        """A value under a name: masked wholly if the name says that it is secret."""
        if value is not None and _SECRET_NAME.search(name):
            return MASK
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.named(str(key), item) for key, item in cast("dict[Any, Any]", value).items()}
        if isinstance(value, list | tuple):
            return [self.named("", item) for item in cast("list[Any]", value)]
        return value


def one_line(value: str) -> str:
    """A text with everything that a terminal could act on as an escape: nobody forges a line, or colours one."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii") for char in value
    )
