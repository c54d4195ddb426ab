"""A rolling restart of two processes of the API loses no request: `python -m bench rolling` has the long form."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.rolling import RATE, restartable, restarted
from tests.kit.patience import PATIENCE


@pytest.mark.timeout(180)
async def test_no_report_is_lost_while_one_after_the_other_is_restarted(
    temporal_address: str, postgres_database: str, tmp_path: Path
) -> None:
    with restartable(tmp_path, postgres_database, temporal_address) as api:
        load = await restarted(api, pause_s=1.0)
    assert load.failed == 0, load.answers
    assert load.answers.total() > RATE * load.lasted_s / (2 * PATIENCE), "that was no load"
