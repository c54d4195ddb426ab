"""The history of an experiment: requests that changed it, and what became of its runs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from api.schemas.base import Instant, Wire

HistoryKind = Literal["request", "state", "run"]


class HistoryRequest(Wire):
    """Which part of it.

    Attributes:
        limit: Events.
        before: `next` of the response before; empty: the newest ones.
        kinds: Only these; none: all.
    """

    limit: int = Field(default=50, ge=1, le=500)
    before: str = Field(default="", max_length=200)
    kinds: list[HistoryKind] = Field(default=[], max_length=3)


class HistoryEvent(Wire):
    """Something that happened to an experiment.

    Attributes:
        at: When.
        kind: `request`: a user or a program changed it; `state`: it began or ended; `run`: a run of a trial failed, or
            was lost with its host.
        text: What happened; of a request what its actor did: "paused it".
        actor: Who asked for it, a username; empty: the cluster.
        fields: Names of what was sent, without the values.
        experiment_id: Another one that it is about; None: none is.
        trial_id: Whose run, or which trial was changed; None: of the whole experiment.
        is_bad: It was a failure.
        address: Where the request came from; empty for readers who are not administrators.
        token_id: Of the access token or session; None for readers who are not administrators.
    """

    at: Instant
    kind: HistoryKind
    text: str
    actor: str = ""
    fields: list[str] = []
    experiment_id: int | None = None
    trial_id: int | None = None
    is_bad: bool = False
    address: str = ""
    token_id: int | None = None


class History(Wire):
    """Events, the newest first. `next` is for the ones before them; empty: there are none."""

    events: list[HistoryEvent]
    next: str = ""
