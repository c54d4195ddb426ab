"""Campaigns: steps that come after each other, and their runs. Ours."""

from __future__ import annotations

from determined.common.api._async import _io
from determined.common.api._url import api_path
from determined.common.experimental._async._wire import new_key, pages
from determined.common.experimental._rows import Rows, Shown, moment

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime
    from typing import Any

    from determined.common.api._async._session import AsyncSession

_ENDED = ("COMPLETED", "CANCELED", "ERROR")


class AsyncCampaignRun(Shown):
    """A run of a campaign. Get it from `Campaign.run()`, `get_run()` or `list_runs()`.

    Attributes:
        campaign_id: Which.
        number: Within its campaign, from 1.
        state: ACTIVE, PAUSED, CANCELING, KILLING, COMPLETED, CANCELED or ERROR.
        message: How it ended, where that needs to be said.
        params: Its parameters.
        started_at, ended_at: When; `ended_at` is None until then.
        steps: By name what became of each: `state`, `outputs`, `message`, `experimentId`, `taskId`, `reusedFrom`, …
            Empty in lists, until `reload()`.
    """

    def __init__(self, session: AsyncSession, campaign_id: int, number: int) -> None:
        self._session = session
        self.campaign_id = campaign_id
        self.number = number
        self.state = "ACTIVE"
        self.message = ""
        self.params: dict[str, Any] = {}
        self.started_at: datetime.datetime | None = None
        self.ended_at: datetime.datetime | None = None
        self.steps: dict[str, dict[str, Any]] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(campaign_id={self.campaign_id}, number={self.number}, state={self.state!r})"

    @classmethod
    def from_wire(cls, session: AsyncSession, body: dict[str, Any]) -> AsyncCampaignRun:
        """From what the API says of a run."""
        run = cls(session, int(body["campaignId"]), int(body["number"]))
        run._take(body)
        return run

    def row(self) -> dict[str, Any]:
        """What it is shown by: column -> value."""
        return {
            "campaign_id": self.campaign_id,
            "number": self.number,
            "state": self.state,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "message": self.message,
        }

    def outputs(self, step: str) -> dict[str, Any]:
        """What a step left: of an experiment `id`, `metric`, `best_checkpoint`, … Empty until it has ended.

        Raises:
            KeyError: There is no such step.
        """
        return self.steps[step]["outputs"]

    async def reload(self) -> None:
        """Fetch all attributes anew. Raises: NotFoundException."""
        self._take((await self._session.get(self._path())).json()["run"])

    async def wait(self, interval: float = 5.0) -> str:
        """Wait until the run ends, and return its state.

        Args:
            interval: Seconds between two looks.

        Raises:
            ValueError: The run is PAUSED, so that it would not end.
        """
        while True:
            await self.reload()
            if self.state in _ENDED:
                return self.state
            if self.state == "PAUSED":
                raise ValueError(
                    f"run {self.number} is paused and does not end by itself; call activate() before wait()"
                )
            await _io.sleep(interval)

    async def pause(self) -> None:
        """Begin no further steps, and pause the experiments of those that run."""
        await self._command("pause")

    async def activate(self) -> None:
        """Go on."""
        await self._command("activate")

    async def cancel(self) -> None:
        """End it: the experiments of its steps store checkpoints first."""
        await self._command("cancel")

    async def kill(self) -> None:
        """End it, and the experiments of its steps, at once."""
        await self._command("kill")

    async def _command(self, command: str) -> None:
        self._take((await self._session.post(self._path(command))).json()["run"])

    def _path(self, *further: str) -> str:
        return api_path("undeterred", "campaigns", self.campaign_id, "runs", self.number, *further)

    def _take(self, body: dict[str, Any]) -> None:
        self.state, self.message, self.params = body["state"], body.get("message") or "", body.get("params") or {}
        self.started_at, self.ended_at = moment(body.get("startedAt")), moment(body.get("endedAt"))
        steps: list[dict[str, Any]] = body.get("steps") or []
        self.steps = {step["name"]: step for step in steps}


class AsyncCampaign(Shown):
    """A campaign. Get it from `create_campaign()`, `get_campaign()` or `list_campaigns()`.

    Attributes:
        id, name, version: As they are called.
        is_paused: Whether its schedule starts nothing.
        params: The defaults of its parameters.
        schedule: `cron`, `timeZone`, `overlap`, `next` times; None without one.
        definition: As it was written; empty in lists, until `reload()`.
    """

    def __init__(self, session: AsyncSession, campaign_id: int) -> None:
        self._session = session
        self.id = campaign_id
        self.name = ""
        self.version = 0
        self.is_paused = False
        self.params: dict[str, Any] = {}
        self.schedule: dict[str, Any] | None = None
        self.definition = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id}, name={self.name!r})"

    @classmethod
    def from_wire(cls, session: AsyncSession, body: dict[str, Any]) -> AsyncCampaign:
        """From what the API says of a campaign."""
        campaign = cls(session, int(body["id"]))
        campaign._take(body)
        return campaign

    def row(self) -> dict[str, Any]:
        """What it is shown by: column -> value."""
        return {"id": self.id, "name": self.name, "version": self.version, "is_paused": self.is_paused}

    async def reload(self) -> None:
        """Fetch all attributes anew. Raises: NotFoundException."""
        self._take((await self._session.get(api_path("undeterred", "campaigns", self.id))).json()["campaign"])

    async def run(self, params: dict[str, Any] | None = None, *, fresh: bool = False) -> AsyncCampaignRun:
        """Start a run now, which acts as you.

        Args:
            params: In place of the campaign's defaults.
            fresh: Do every step, whatever earlier runs did.

        Raises:
            InvalidRequestException: A parameter that there is not, or of another type.
        """
        body = {"params": params or {}, "fresh": fresh}
        answer = await self._session.post(
            api_path("undeterred", "campaigns", self.id, "runs"), body, idempotency_key=new_key()
        )
        return AsyncCampaignRun.from_wire(self._session, answer.json()["run"])

    async def get_run(self, number: int) -> AsyncCampaignRun:
        """A run by its number. Raises: NotFoundException."""
        answer = await self._session.get(api_path("undeterred", "campaigns", self.id, "runs", number))
        return AsyncCampaignRun.from_wire(self._session, answer.json()["run"])

    async def list_runs(self) -> Rows[AsyncCampaignRun]:
        """Its runs, the newest first."""
        found = pages(self._session, api_path("undeterred", "campaigns", self.id, "runs"), {}, "runs")
        return Rows([AsyncCampaignRun.from_wire(self._session, body) async for body in found])

    async def pause(self) -> None:
        """Have its schedule start nothing. Runs go on."""
        await self._command("pause")

    async def activate(self) -> None:
        """Have its schedule start runs again."""
        await self._command("activate")

    async def backfill(
        self, start: datetime.datetime, end: datetime.datetime, *, all_at_once: bool = False, dry_run: bool = False
    ) -> list[datetime.datetime]:
        """Start runs for times of its schedule that are over; those that had one get no other.

        Args:
            start: From this time on; it needs a time zone.
            end: To this time, which is included.
            all_at_once: Do not run them one after the other.
            dry_run: Only say which times those are.

        Raises:
            InvalidRequestException: More than 200 times, or one that is not over.
        """
        body = {"start": start.isoformat(), "end": end.isoformat(), "allAtOnce": all_at_once, "dryRun": dry_run}
        path = api_path("undeterred", "campaigns", self.id, "backfill")
        answer = await self._session.post(path, body, idempotency_key=new_key())
        found = (moment(text) for text in answer.json()["times"])
        return [time for time in found if time is not None]

    async def delete(self) -> None:
        """Delete it with its runs. What they made stays."""
        await self._session.delete(api_path("undeterred", "campaigns", self.id))

    async def _command(self, command: str) -> None:
        self._take((await self._session.post(api_path("undeterred", "campaigns", self.id, command))).json()["campaign"])

    def _take(self, body: dict[str, Any]) -> None:
        self.name, self.version, self.is_paused = body["name"], int(body["version"]), bool(body["isPaused"])
        self.params, self.schedule = body.get("params") or {}, body.get("schedule")
        self.definition = body.get("definition") or self.definition
