"""Programs that ask for a user, such as a coding agent: how they are named in requests and in the audit log."""

from __future__ import annotations

import re

#: The header of a request with the name of the program that it is from.
AGENT_HEADER = "X-Undeterred-Agent"
_NOT_IN_NAMES, _LONGEST = re.compile(r"[^A-Za-z0-9._ -]+"), 60


def agent_name(text: str) -> str:
    """The name that a program gives itself, of characters that headers and records take; at most 60 of them."""
    return " ".join(_NOT_IN_NAMES.sub(" ", text).split())[:_LONGEST]
