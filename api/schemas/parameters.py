"""Parameters that mean the same in all routes, for signatures and the OpenAPI page."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

ExperimentId = Annotated[int, Path(description="The number of an experiment.")]
TrialId = Annotated[int, Path(description="The number of a trial.")]
RunId = Annotated[int, Path(description="The number of a trial, which newer clients call a run.")]
TaskId = Annotated[str, Path(description="The id of a task.")]
AllocationId = Annotated[str, Path(description="The id of an allocation: one run of a task.")]
CheckpointUuid = Annotated[str, Path(description="The UUID of a checkpoint.")]
WorkspaceId = Annotated[int, Path(description="The number of a workspace.")]
ProjectId = Annotated[int, Path(description="The number of a project.")]
UserId = Annotated[int, Path(description="The number of a user.")]
TokenId = Annotated[int, Path(description="The number of an access token.")]
GroupId = Annotated[int, Path(description="The number of a group.")]
AgentId = Annotated[str, Path(description="The name of an agent.")]
SlotId = Annotated[str, Path(description="The number of a slot of an agent.")]
PoolName = Annotated[str, Path(description="The name of a resource pool.")]
Follow = Annotated[bool, Query(description="Stay connected and send what comes, until the end.")]
Archived = Annotated[bool | None, Query(description="Only archived ones, or only those that are not archived.")]
NamePart = Annotated[str, Query(description="What is in the name, in any case.")]

# Of queries.
OFFSET = "Where the page begins; negative: counted from the end. Beyond the end it is refused."
LIMIT = "How many at most; 0: all (of experiments and jobs: 100)."
ORDER_BY = "ORDER_BY_ASC or ORDER_BY_DESC."
SORT_BY = "SORT_BY_… of an attribute; an unknown one is refused with a list of those that there are."
SUMMARY = "true leaves out what is large: configurations, and of trials all but their number."
STATES = "Only those in one of these states; repeated for several."
LABELS = "Only those that have all of these labels; repeated for several."
USER_IDS = "Only those of these users; repeated for several."
USERS = "Only those of users with these names; repeated for several."
WORKSPACE_IDS = "Only those in these workspaces; repeated for several."
