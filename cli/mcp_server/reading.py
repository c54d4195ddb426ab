"""Tools that read: experiments, trials, curves, logs, decisions, and why things stand as they do."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, Literal

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.context import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from cli.flat import flat
from cli.mcp_server.cluster import Cluster, only, state, tail, told
from cli.search import ENDED

Id = Annotated[int, Field(ge=1, lt=2**31)]
_READS = ToolAnnotations(read_only_hint=True)
_POLL_S, _MOST_WATCHED_S, _MOST_COMPARED = 1.0, 600, 6
_TaskId = Annotated[str, Field(max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]*$")]
_JOB = (
    "jobId", "name", "type", "entityId", "username", "priority", "weight", "requestedSlots", "allocatedSlots", "waits",
    "estimatedWaitSeconds",
)  # fmt: skip
_LEVELS = {"": [], "WARNING": ["WARNING", "ERROR", "CRITICAL"], "ERROR": ["ERROR", "CRITICAL"]}
_EXPERIMENT = (
    "id", "name", "labels", "numTrials", "bestTrialId", "bestTrialSearcherMetric", "searcherType", "searcherMetric",
    "progress", "startTime", "endTime", "resourcePool", "username", "projectId",
)  # fmt: skip
_CAMPAIGN = ("id", "name", "owner", "workspace", "version", "isPaused", "schedule", "lastRun")
_TRIAL = ("id", "totalBatchesProcessed", "searcherMetricValue", "hparams", "restarts", "rung", "bracket", "message")


def add(server: MCPServer, cluster: Cluster) -> None:
    """Add them to a server."""
    _add_lists(server, cluster)
    _add_details(server, cluster)
    _add_watch(server, cluster)


def _add_lists(server: MCPServer, cluster: Cluster) -> None:
    @server.tool(annotations=_READS)
    async def experiments(
        ctx: Context,
        project_id: Annotated[int, Field(ge=0, description="0: all")] = 0,
        name: Annotated[str, Field(max_length=200, description="a part of the name")] = "",
        state: Literal["", "ACTIVE", "PAUSED", "COMPLETED", "CANCELED", "ERROR"] = "",
        sort: Annotated[str, Field(pattern=r"^-?[A-Za-z.]{1,100}$", description="-id: the newest first")] = "-id",
        limit: Annotated[int, Field(ge=1, le=100)] = 20,
    ) -> str:
        """Experiments, each with its state, its best trial and that trial's metric."""
        fields = [("name", "contains", name), ("state", "=", state)]
        children = [
            {"kind": "field", "columnName": column, "operator": operator, "value": value}
            for column, operator, value in fields
            if value
        ]
        body = {
            "projectId": project_id,
            "limit": limit,
            "sort": f"{sort.removeprefix('-')}={'desc' if sort.startswith('-') else 'asc'}",
            "filter": json.dumps({"filterGroup": {"kind": "group", "conjunction": "and", "children": children}}),
        }
        found = await cluster.send(ctx, "POST", "undeterred/experiments-grid", body)
        return told([_shown(each) for each in found["experiments"]])

    @server.tool(annotations=_READS)
    async def trials(
        ctx: Context,
        experiment_id: Id,
        sort: Annotated[Literal["best", "newest"], Field(description="by the searcher's metric, or by id")] = "best",
        limit: Annotated[int, Field(ge=1, le=100)] = 20,
    ) -> str:
        """Trials of an experiment with their hyperparameters, metric, rung and last word."""
        experiment = (await cluster.get(ctx, f"experiments/{experiment_id}"))["experiment"]
        smaller = experiment["config"]["searcher"].get("smaller_is_better", True)
        order = "ASC" if sort == "best" and smaller else "DESC"
        by = "SORT_BY_BEST_VALIDATION_METRIC" if sort == "best" else "SORT_BY_ID"
        path = f"experiments/{experiment_id}/trials"
        found = await cluster.get(ctx, path, limit=limit, sortBy=by, orderBy=f"ORDER_BY_{order}")
        return told([{**only(each, _TRIAL), "state": state(each)} for each in found["trials"]])

    @server.tool(annotations=_READS)
    async def pools(ctx: Context) -> str:
        """Resource pools: slots in use and in all, agents, how many jobs wait."""
        found = (await cluster.get(ctx, "resource-pools"))["resourcePools"]
        return told([only(each, ("name", "slotsUsed", "slotsAvailable", "numAgents", "stats")) for each in found])

    @server.tool(annotations=_READS)
    async def queue(
        ctx: Context, pool: Annotated[str, Field(max_length=100, description="empty: the default")] = ""
    ) -> str:
        """The jobs of a pool in their order: who runs, who waits, why, and about how long yet."""
        found = await cluster.get(ctx, "job-queues-v2", limit=100, **({"resourcePool": pool} if pool else {}))
        jobs = [each.get("full") or each["limited"] for each in found["jobs"]]
        return told([{**only(each, _JOB), "state": state(each.get("summary") or {})} for each in jobs])

    @server.tool(annotations=_READS)
    async def campaigns(
        ctx: Context,
        campaign_id: Annotated[int, Field(ge=0, lt=2**31, description="0: all, the newest first")] = 0,
        run: Annotated[int, Field(ge=0, lt=2**31, description="0: the newest one")] = 0,
    ) -> str:
        """Campaigns: steps that come after each other. Of one also its definition, and the steps of a run."""
        path = "undeterred/campaigns"
        if not campaign_id:
            found = (await cluster.get(ctx, path, limit=100))["campaigns"]
            return told([only(each, _CAMPAIGN) for each in found])
        one = (await cluster.get(ctx, f"{path}/{campaign_id}"))["campaign"]
        last: dict[str, Any] = one.get("lastRun") or {}
        number: int | None = run or last.get("number")
        shown = only(one, (*_CAMPAIGN, "params", "definition"))
        if number:
            shown["run"] = (await cluster.get(ctx, f"{path}/{campaign_id}/runs/{number}"))["run"]
        return told(shown)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {**only(row, _EXPERIMENT), "state": state(row)}


def _add_details(server: MCPServer, cluster: Cluster) -> None:
    @server.tool(annotations=_READS)
    async def experiment(ctx: Context, experiment_id: Id) -> str:
        """An experiment: facts, why it stands so, and its configuration as it was written."""
        found = (await cluster.get(ctx, f"experiments/{experiment_id}"))["experiment"]
        why = await cluster.get(ctx, f"undeterred/experiments/{experiment_id}/why")
        return told({**_shown(found), "why": why["sentences"], "config": found.get("originalConfig", "")})

    @server.tool(annotations=_READS)
    async def why(ctx: Context, kind: Literal["experiment", "trial", "task"], id: _TaskId) -> str:
        """Why something waits, runs, stopped or failed, and what would change that; of trials also each decision."""
        found = (await cluster.get(ctx, f"undeterred/{kind}s/{id}/why"))["sentences"]
        if kind == "trial":
            found += (await cluster.get(ctx, f"undeterred/trials/{id}/decisions"))["sentences"]
        return told("\n".join(found))

    @server.tool(annotations=_READS)
    async def curve(
        ctx: Context,
        trial_ids: Annotated[list[Id], Field(min_length=1, max_length=20)],
        metric: Annotated[str, Field(max_length=300, description="group.name, as validation.loss")],
        points: Annotated[int, Field(ge=3, le=500)] = 50,
    ) -> str:
        """A metric of trials over their steps, thinned: the least and the greatest value of each part are kept."""
        found = await cluster.get(
            ctx, "trials/time-series", trialIds=trial_ids, metricIds=[metric], maxDatapoints=points
        )
        group, _, name = metric.partition(".")
        curves = {
            each["trial"]["id"]: [[point["batches"], point["values"][name]] for point in series["data"]]
            for each in found["trials"]
            for series in each["metrics"]
            if series["group"] == group
        }
        return told({"metric": metric, "steps and values by trial": curves})

    @server.tool(annotations=_READS)
    async def metrics(ctx: Context, trial_id: Id) -> str:
        """The metrics that a trial reports, by group, each with its last, least and greatest value."""
        trial = (await cluster.get(ctx, f"trials/{trial_id}"))["trial"]
        summary: dict[str, dict[str, dict[str, Any]]] = trial.get("summaryMetrics") or {}
        groups = {"avg_metrics": "training", "validation_metrics": "validation"}
        shown = {
            groups.get(group, group): {name: only(each, ("last", "min", "max", "count")) for name, each in of.items()}
            for group, of in summary.items()
        }
        return told(shown)

    @server.tool(annotations=_READS)
    async def log(
        ctx: Context,
        trial_id: Annotated[int, Field(ge=0, lt=2**31)] = 0,
        task_id: Annotated[str, Field(max_length=80, pattern=r"^([A-Za-z0-9][A-Za-z0-9.-]*)?$")] = "",
        search: Annotated[str, Field(max_length=300, description="only lines with this text")] = "",
        level: Literal["", "WARNING", "ERROR"] = "",
        lines: Annotated[int, Field(ge=1, le=500)] = 100,
        before: Annotated[int, Field(ge=0, description="lines before the one with this id; 0: the last ones")] = 0,
    ) -> str:
        """Lines of a trial's or a task's log, by default the last ones; each begins with its id."""
        if bool(trial_id) == bool(task_id):
            raise ToolError("expected either trial_id or task_id")
        levels = [f"LOG_LEVEL_{each}" for each in _LEVELS[level]]
        params: dict[str, Any] = {"limit": lines, "search": search, "levels": levels}
        params |= {"before": before} if before else {}
        path = f"undeterred/{f'trials/{trial_id}' if trial_id else f'tasks/{task_id}'}/log-window"
        found = await cluster.get(ctx, path, **params)
        text = "".join(f"{line['id']} {line['time'][11:19]} {line['text'].rstrip()}\n" for line in found["lines"])
        rest = found.get("lookedTo")
        return tail(text or "no such lines") + (
            f"\nlooked back to line {rest}: go on with before={rest}" if rest else ""
        )

    @server.tool(annotations=_READS)
    async def compare(
        ctx: Context, experiment_ids: Annotated[list[Id], Field(min_length=2, max_length=_MOST_COMPARED)]
    ) -> str:
        """What differs between the configurations of experiments, and how each of them went."""
        rows = [(await cluster.get(ctx, f"experiments/{each}"))["experiment"] for each in experiment_ids]
        configs = [flat(row["config"]) for row in rows]
        keys = sorted({key for one in configs for key in one if any(each.get(key) != one[key] for each in configs)})
        return told(
            {
                "experiments": [_shown(row) for row in rows],
                "differs": {key: [each.get(key) for each in configs] for key in keys},
            }
        )

    @server.tool(annotations=_READS)
    async def plan(ctx: Context, config: Annotated[str, Field(max_length=200_000, description="YAML")]) -> str:
        """What a configuration would do: checked as at a launch, trials and their lengths, warnings. Nothing starts."""
        found = await cluster.send(ctx, "POST", "undeterred/experiments/plan", {"config": config})
        return told(only(found, ("unit", "trials", "warnings", "notices")))


def _add_watch(server: MCPServer, cluster: Cluster) -> None:
    @server.tool(annotations=_READS)
    async def watch(
        ctx: Context, experiment_id: Id, seconds: Annotated[int, Field(ge=1, le=_MOST_WATCHED_S)] = 60
    ) -> str:
        """Wait until an experiment has ended, or the time is up; notifies of progress meanwhile."""
        until = time.monotonic() + seconds
        said = ""
        while True:
            row = (await cluster.get(ctx, f"experiments/{experiment_id}"))["experiment"]
            best = row.get("bestTrialSearcherMetric")
            now = f"{state(row).lower()}, {row['numTrials']} trials" + ("" if best is None else f", best {best}")
            if now != said:
                await ctx.report_progress(float(row.get("progress") or 0), 1.0, now)
                said = now
            if state(row) in ENDED or time.monotonic() >= until:
                return told({**_shown(row), "has_ended": state(row) in ENDED})
            await anyio.sleep(_POLL_S)
