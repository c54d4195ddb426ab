"""What the API does every so often goes on when the database was away."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
import structlog
from sqlalchemy.exc import OperationalError

from api.services.rounds import rounds


async def test_a_round_that_the_database_refused_is_logged_and_the_next_one_comes() -> None:
    answers: list[int | Exception] = [0, OperationalError("", None, ValueError("away")), 3]

    def work() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with structlog.testing.capture_logs() as said:
        task = asyncio.create_task(rounds(timedelta(milliseconds=1), work, done="rows removed", failed="not looked at"))
        with pytest.raises(IndexError):  # what is no refusal of the database is a defect, and ends it
            await asyncio.wait_for(task, 10)
    own = [
        each for each in said if each["event"] in ("not looked at", "rows removed")
    ]  # others of this process log too
    assert [(each["event"], each.get("rows")) for each in own] == [("not looked at", None), ("rows removed", 3)]
