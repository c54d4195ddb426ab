"""Messages about campaigns. Ours; not part of the old wire."""

from __future__ import annotations

from pydantic import Field

from api.schemas.base import Instant, Map, Pagination, Raw, Timestamp, Wire, example
from api.schemas.contexts import File

_DEFINITION = """name: nightly
steps:
  train:
    experiment: train.yaml
  publish:
    register: {checkpoint: "${steps.train.best_checkpoint}", model: nightly}
    when: ${steps.train.metric} < 0.1
"""


class PostCampaign(Wire, json_schema_extra=example({"definition": _DEFINITION, "files": []})):
    """A campaign to create.

    Attributes:
        definition: YAML or JSON.
        files: The context folder, which experiments and tasks run with.
        validate_only: Check it, and create nothing.
    """

    definition: str = ""
    files: list[File] = Field(default=[], max_length=100_000)
    validate_only: bool = False


class PutCampaign(Wire, json_schema_extra=example({"definition": _DEFINITION})):
    """A further version of a campaign. Without `files` those of the version before stay."""

    definition: str = ""
    files: list[File] | None = Field(default=None, max_length=100_000)


class CampaignStep(Wire):
    """A step of a definition. `before`: the steps that it comes after."""

    name: str
    kind: str
    before: list[str] = []
    when: str | None = None
    retries: int = 0
    if_failed: str = "stop"
    reuse: bool = True


class CampaignSchedule(Wire):
    """When runs begin by themselves. `next`: the next times, unless it is paused."""

    cron: str
    time_zone: str
    overlap: str
    catch_up: str
    next: list[Timestamp] = []


class RunStep(Wire):
    """What became of a step in a run.

    Attributes:
        name: Of the step.
        state: WAITING, LAUNCHING, RUNNING, COMPLETED, REUSED, SKIPPED, ERROR or CANCELED.
        attempt: How often it was launched.
        message: Why it is in its state.
        outputs: What it leaves for other steps.
        experiment_id: What it runs.
        task_id: What it runs, if that is a task.
        reused_from: The number of the run that did the same.
        started_at: When it was launched first.
        ended_at: When it ended.
    """

    name: str
    state: str
    attempt: int = 0
    message: str = ""
    outputs: Raw
    experiment_id: int | None = None
    task_id: str | None = None
    reused_from: int | None = None
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None


class CampaignRun(Wire):
    """A run of a campaign.

    Attributes:
        number: Within its campaign.
        campaign_id: Which.
        version: Of the definition that it runs.
        state: ACTIVE, PAUSED, CANCELING, KILLING, COMPLETED, CANCELED or ERROR.
        message: How it ended, where that needs to be said.
        started_by: The user; empty: the schedule.
        owner: The user whom its steps act as.
        params: Its parameters.
        is_fresh: Nothing is taken from earlier runs.
        scheduled_at: The time of the schedule that it is for.
        started_at: When it began.
        ended_at: When it ended.
        steps: In the order of the definition; empty in lists.
    """

    number: int
    campaign_id: int
    version: int
    state: str
    message: str = ""
    started_by: str = ""
    owner: str = ""
    params: Raw
    is_fresh: bool = False
    scheduled_at: Timestamp | None = None
    started_at: Timestamp
    ended_at: Timestamp | None = None
    steps: list[RunStep] = []


class Campaign(Wire):
    """A campaign in its newest version.

    Attributes:
        id: Its number.
        name: Of the definition.
        description: Of the definition.
        owner: The user whom its steps act as.
        workspace_id: Where it is.
        workspace: The name of that.
        project_id: Where its experiments go.
        version: Of the definition, from 1.
        is_paused: The schedule starts nothing.
        schedule: If it has one.
        params: The defaults of its parameters.
        steps: In the order of the definition.
        definition: As it was written; empty in lists.
        last_run: The newest one, without its steps.
        created_at: Of the first version.
        updated_at: Of its newest version, or of when it was paused or activated.
        may_change: Whether the caller may run, pause and delete it.
        may_edit: Whether the caller may change what it does.
    """

    id: int
    name: str
    description: str = ""
    owner: str
    workspace_id: int
    workspace: str = ""
    project_id: int
    version: int
    is_paused: bool = False
    schedule: CampaignSchedule | None = None
    params: Raw
    steps: list[CampaignStep] = []
    definition: str = ""
    last_run: CampaignRun | None = None
    created_at: Timestamp
    updated_at: Timestamp
    may_change: bool = False
    may_edit: bool = False


class CampaignResponse(Wire):
    """One campaign."""

    campaign: Campaign


class CampaignsResponse(Wire):
    """Campaigns, the newest first."""

    campaigns: list[Campaign]
    pagination: Pagination


class PostRun(Wire, json_schema_extra=example({"params": {"epochs": 5}, "fresh": False})):
    """A run to start now. `params`: in place of the defaults; `fresh`: nothing is taken from earlier runs."""

    params: Map = {}
    fresh: bool = False


class RunResponse(Wire):
    """One run."""

    run: CampaignRun


class RunsResponse(Wire):
    """Runs of a campaign, the newest first."""

    runs: list[CampaignRun]
    pagination: Pagination


class PostBackfill(Wire, json_schema_extra=example({"start": "2026-11-01T00:00:00Z", "end": "2026-11-08T00:00:00Z"})):
    """Times of the schedule that are over and are to have a run: from `start` to `end`, both included.

    `allAtOnce`: their runs do not wait for each other. `dryRun`: only say which times those are.
    """

    start: Instant
    end: Instant
    all_at_once: bool = False
    dry_run: bool = False


class BackfillResponse(Wire):
    """The times that were found. Those that had a run already get none."""

    times: list[Timestamp]
