"""Trials of unmanaged experiments. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from pydantic import Field

from api.schemas.base import Instant, Map, Wire, example


class CreateTrialRequest(Wire, json_schema_extra=example({"experimentId": 7, "unmanaged": True})):
    """v1CreateTrialRequest."""

    experiment_id: int
    hparams: Map = Field(default_factory=dict)
    unmanaged: bool = False


class PutTrialRequest(
    Wire,
    json_schema_extra=example({"externalTrialId": "a", "createTrialRequest": {"experimentId": 7, "unmanaged": True}}),
):
    """v1PutTrialRequest."""

    create_trial_request: CreateTrialRequest
    external_trial_id: str


class StartTrialRequest(Wire, json_schema_extra=example({"resume": True})):
    """v1StartTrialRequest."""

    resume: bool = False


class PatchTrialRequest(Wire, json_schema_extra=example({"state": "STATE_COMPLETED"})):
    """v1PatchTrialRequest, and ours: when a trial that was trained before began and ended."""

    state: str | None = None
    start_time: Instant | None = None
    end_time: Instant | None = None
