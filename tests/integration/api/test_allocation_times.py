"""When the trials of an experiment held slots."""

from __future__ import annotations

from api.schemas.base import rfc3339
from tests.integration.api.served import Served


async def test_runs_of_all_trials_are_listed_with_their_ends(api: Served) -> None:
    user = api.user()
    first = await api.trial(user)
    second = await api.another_trial(first.experiment_id, slots=2)
    again = await api.next_run(first)
    await api.end(second)
    path = f"/api/v1/undeterred/experiments/{first.experiment_id}/allocations"
    found = await user.get(path)
    assert [trial["trialId"] for trial in found["trials"]] == [first.trial_id, second.trial_id]
    assert [trial["endedAt"] is None for trial in found["trials"]] == [True, False]
    runs = [(run["trialId"], run["runId"], run["slots"], run["endedAt"] is None) for run in found["allocations"]]
    assert runs == [(first.trial_id, 1, 1, False), (second.trial_id, 1, 2, False), (again.trial_id, 2, 1, True)]
    assert found["allocations"][0]["agents"] == ["agent-a"]
    assert found["trials"][0]["startedAt"][:19] == rfc3339(api.row(first.trial_id).started_at)[:19]
    newest = await user.get(path, most=1)
    assert [run["runId"] for run in newest["allocations"]] == [2]
    assert [trial["trialId"] for trial in newest["trials"]] == [first.trial_id]


async def test_number_of_runs_is_bounded(api: Served) -> None:
    user = api.user()
    number = await api.experiment(user)
    path = f"/api/v1/undeterred/experiments/{number}/allocations"
    assert await user.get(path) == {"trials": [], "allocations": []}
    for most in (0, 2001):
        assert "most" in await user.refused(400, "GET", path, params={"most": most})
