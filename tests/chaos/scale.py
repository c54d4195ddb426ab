"""How long the chaos tests are: short within `make test`, long with `make soak`; and the seed that they draw from."""

from __future__ import annotations

import os
import random

#: Set by `make soak`.
IS_LONG = os.environ.get("UNDETERRED_SOAK") == "1"


def chosen(short: int, long: int) -> int:
    """The figure for the form that runs."""
    return long if IS_LONG else short


def seed() -> int:
    """The seed of this run, printed; `UNDETERRED_CHAOS_SEED` runs one again."""
    given = os.environ.get("UNDETERRED_CHAOS_SEED")
    number = int(given) if given else (random.SystemRandom().randrange(2**31) if IS_LONG else 2026)
    print(f"\nUNDETERRED_CHAOS_SEED={number}")
    return number
