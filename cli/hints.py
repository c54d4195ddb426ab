"""Suggestions for the number of an experiment or a trial that does not exist."""

from __future__ import annotations

import difflib
import re

from cli import render, session
from determined import errors

_NUMBERED = re.compile(r"(experiment|trial) ([0-9]+) not found\b")
_LATEST = 200


def of(message: str) -> str:
    """What to add to the cluster's message that something is not found; empty if there is nothing to add."""
    missing = _NUMBERED.match(message)
    if missing is None:
        return ""
    try:
        return _meant(missing[1], missing[2])
    except errors.APIException:  # it is a courtesy: the message itself says what is wrong
        return ""
    finally:
        session.close()


def _meant(kind: str, number: str) -> str:
    """The other of the two with that number, as people mix them up; else the latest experiment of a similar number."""
    try:
        if kind == "trial":
            session.fetch(f"experiments/{number}")
            return f"; did you mean experiment {number}?"
        found = session.fetch(f"trials/{number}")["trial"]
    except errors.NotFoundException:
        if kind == "trial":
            return ""
    else:
        return f"; did you mean trial {number}, of experiment {found['experimentId']}?"
    latest = session.fetch("experiments", limit=_LATEST, sortBy="SORT_BY_ID", orderBy="ORDER_BY_DESC")
    numbers = [str(experiment["id"]) for experiment in render.parts(latest, "experiments")]
    close = difflib.get_close_matches(number, numbers, 1, 0.6)
    return f"; did you mean {close[0]}?" if close else ""
