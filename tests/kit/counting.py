"""Counts calls of methods that work as ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def counted(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[str]:
    """Has an entry for each call of a method from now on."""
    calls: list[str] = []
    method: Callable[..., Any] = getattr(kind, name)

    def call(*given: Any, **named: Any) -> Any:
        calls.append(name)
        return method(*given, **named)

    monkeypatch.setattr(kind, name, call)
    return calls
