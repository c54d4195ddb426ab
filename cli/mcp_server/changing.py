"""Tools that change something. What destroys asks the person in front of the agent first."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from mcp.server import MCPServer
from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver.context import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

from cli.mcp_server.cluster import Cluster, only, told
from cli.mcp_server.reading import Id
from determined.common.context import FILE_TYPE

_CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True)
_DESTROYS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True)
#: Of a launch by text; more than that is sent by `det experiment create`.
_MOST_FILES, _LONGEST_FILE = 50, 200_000
Key = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9._:-]{1,128}$",
        description="yours, of this launch: with the same key it is made once, however often you ask",
    ),
]


class Consent(BaseModel):
    """What a person is asked."""

    yes: bool = Field(description="do it")


def _asks_to_end(experiment_id: int, how: str) -> Elicit[Consent]:
    ends = "at once, without a last checkpoint" if how == "kill" else "after their next checkpoint"
    return Elicit(f"End experiment {experiment_id}? Its trials end {ends}.", Consent)


def _asks_to_kill(trial_id: int) -> Elicit[Consent]:
    return Elicit(f"Kill trial {trial_id}? It ends at once, without a last checkpoint.", Consent)


def _agreed(answer: ElicitationResult[Consent]) -> None:
    if not (isinstance(answer, AcceptedElicitation) and answer.data.yes):
        raise ToolError("the person did not agree: nothing was done")


def add(server: MCPServer, cluster: Cluster) -> None:
    """Add them to a server."""
    _add_launches(server, cluster)
    _add_commands(server, cluster)


def _add_launches(server: MCPServer, cluster: Cluster) -> None:
    @server.tool(annotations=_CHANGES)
    async def launch(
        ctx: Context,
        config: Annotated[str, Field(max_length=200_000, description="YAML")],
        files: Annotated[dict[str, str], Field(max_length=_MOST_FILES, description="path: text")],
        idempotency_key: Key,
        project_id: Annotated[int, Field(ge=0, description="0: the default one")] = 0,
        dry_run: Annotated[bool, Field(description="only tell what would be launched, with its digest")] = False,
        expected_digest: Annotated[
            str, Field(pattern=r"^[0-9a-f]{0,64}$", description="of a dry run: refuse if anything differs from it")
        ] = "",
    ) -> str:
        """Launch an experiment, exactly once for its key. The same key with other content is refused."""
        long = next((path for path, text in files.items() if len(text) > _LONGEST_FILE), None)
        if long is not None:
            raise ToolError(f"files: {long[:80]!r}: {len(files[long])} characters: expected at most {_LONGEST_FILE}")
        submit: dict[str, Any] = {"dry_run": True} if dry_run else {"idempotency_key": idempotency_key}
        submit |= {"expected_digest": expected_digest} if expected_digest else {}
        body: dict[str, Any] = {"config": config, "modelDefinition": _files(files), "activate": True, "submit": submit}
        body |= {"projectId": project_id} if project_id else {}
        found = await cluster.send(ctx, "POST", "experiments", body, key="" if dry_run else idempotency_key)
        shown = only(found.get("submission") or {}, ("jobId", "replayed", "requestDigest", "outcome"))
        experiment: dict[str, Any] = found.get("experiment") or {}
        created = experiment.get("id")
        return told(shown | ({"experiment_id": created} if created else {}) | only(found, ("warnings",)))

    @server.tool(annotations=_CHANGES)
    async def fork(
        ctx: Context,
        experiment_id: Id,
        idempotency_key: Key,
        config: Annotated[str, Field(max_length=200_000, description="YAML; empty: as it is")] = "",
        at: Annotated[int, Field(ge=0, description="the last decision to share; 0: the last one there is")] = 0,
    ) -> str:
        """Create an experiment that shares another one's history: what was trained is not trained again."""
        body: dict[str, Any] = {"activate": True} | ({"config": config} if config else {}) | ({"at": at} if at else {})
        found = await cluster.send(ctx, "POST", f"experiments/{experiment_id}/fork", body, key=idempotency_key)
        return told({"experiment_id": found["experiment"]["id"], **only(found, ("warnings",))})

    @server.tool(annotations=_CHANGES)
    async def run_campaign(
        ctx: Context,
        campaign_id: Id,
        idempotency_key: Key,
        params: Annotated[dict[str, str | bool | int | float], Field(description="in place of the defaults")] = {},  # noqa: B006
    ) -> str:
        """Start a run of a campaign, exactly once for its key. Look at it with `campaigns`."""
        path = f"undeterred/campaigns/{campaign_id}/runs"
        found = (await cluster.send(ctx, "POST", path, {"params": params}, key=idempotency_key))["run"]
        return told(only(found, ("campaignId", "number", "state")))


def _files(files: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "path": path,
            "type": FILE_TYPE,
            "content": base64.b64encode(text.encode()).decode(),
            "mode": 0o644,
            "mtime": "0",
        }
        for path, text in sorted(files.items())
    ]


def _add_commands(server: MCPServer, cluster: Cluster) -> None:
    @server.tool(annotations=_CHANGES)
    async def command(
        ctx: Context, experiment_id: Id, what: Literal["pause", "activate", "archive", "unarchive"]
    ) -> str:
        """Pause an experiment, let it go on, put it away, or take it back."""
        await cluster.send(ctx, "POST", f"experiments/{experiment_id}/{what}", {})
        return f"{what}: done"

    @server.tool(annotations=_DESTROYS)
    async def end(
        experiment_id: Id,
        how: Annotated[Literal["cancel", "kill"], Field(description="cancel: after the next checkpoints")],
        consent: Annotated[ElicitationResult[Consent], Resolve(_asks_to_end)],
        ctx: Context,
    ) -> str:
        """End an experiment for good. Asks the person first."""
        _agreed(consent)
        await cluster.send(ctx, "POST", f"experiments/{experiment_id}/{how}", {})
        return f"{how}: done"

    @server.tool(annotations=_DESTROYS)
    async def kill_trial(
        trial_id: Id, consent: Annotated[ElicitationResult[Consent], Resolve(_asks_to_kill)], ctx: Context
    ) -> str:
        """End one trial at once; its search goes on without it. Asks the person first."""
        _agreed(consent)
        await cluster.send(ctx, "POST", f"trials/{trial_id}/kill", {})
        return "killed"

    @server.tool(annotations=_CHANGES)
    async def note(ctx: Context, experiment_id: Id, text: Annotated[str, Field(max_length=20_000)]) -> str:
        """Add to the notes of an experiment: what you saw, and what you would try next."""
        before = (await cluster.get(ctx, f"experiments/{experiment_id}"))["experiment"].get("notes") or ""
        notes = f"{before.rstrip()}\n\n{text}".strip()
        await cluster.send(ctx, "PATCH", f"experiments/{experiment_id}", {"notes": notes})
        return "noted"
