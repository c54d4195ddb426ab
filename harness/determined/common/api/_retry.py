"""When to try again, and how long to wait before."""

from __future__ import annotations

from determined import errors

OUTAGE_GROWTH = 1.1
"""After an outage of t seconds the next try is t/10 away, not t as with the usual doubling: a master that was restarted
within seconds hears from its trials a fraction of a second later."""

OUTAGE_CAP_S = 5.0
"""… but never further: after an outage of any length a trial is heard of within seconds."""

_TRANSIENT_STATUSES = (408, 429, 502, 503, 504)


class Backoff:
    """Exponential waiting times with jitter: the n-th is between half and all of `min(cap, base · growthⁿ)`."""

    def __init__(self, base_s: float = 0.1, cap_s: float = 10.0, growth: float = 2.0) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._growth = growth
        self.count = 0

    def next(self, at_least_s: float = 0.0) -> float:
        """The next waiting time in seconds."""
        delay = min(self._cap_s, self._base_s * self._growth ** min(self.count, 300)) * jitter()
        self.count += 1
        return max(delay, min(at_least_s, self._cap_s))


def jitter() -> float:
    """Between 0.5 and 1, from the system's generator: numbers of `random` are the training code's, which seeds it."""
    import random

    return random.SystemRandom().uniform(0.5, 1)


def is_transient(e: errors.APIException) -> bool:
    """Whether the same request may succeed a little later."""
    return isinstance(e, errors.MasterNotFoundException) or e.status in _TRANSIENT_STATUSES
