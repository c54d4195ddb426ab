"""An orchestrator whose trials are simulated: hundreds of them are alive and report without any container.

`python -m tests.kit.simulated_orchestrator` takes the settings of the real one, and runs all of its workflows but Trial.
"""

from __future__ import annotations

from functools import partial

from tests.kit.simulated import LiveTrial
from tests.kit.trial_reports import ReportActivities
from workers import orchestrator
from workflows.trial import Trial

if __name__ == "__main__":
    orchestrator.WORKFLOWS[:] = [LiveTrial if workflow is Trial else workflow for workflow in orchestrator.WORKFLOWS]
    orchestrator.new_worker = partial(
        orchestrator.new_worker, further=lambda messenger: ReportActivities(messenger).all()
    )
    orchestrator.run()
