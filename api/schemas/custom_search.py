"""Messages of a custom search. Source: spec searchers.md §10, rest-api.md `v1SearcherEvent`."""

from __future__ import annotations

import uuid
from typing import Any, cast

import orjson

from api.errors import BadRequest
from api.schemas.base import plain
from api.schemas.search import PostSearcherOperations
from workflows.lifecycle.experiment import ExperimentState
from workflows.searchers import Close, Create, OperationsPosted, SetProgress, Shutdown, TrainTo
from workflows.searchers.messages import PostedOperation

_REASONS = {
    "invalid_hp": "EXITED_REASON_INVALID_HP",
    "init_invalid_hp": "EXITED_REASON_INVALID_HP",
    "user_requested_stop": "EXITED_REASON_USER_REQUESTED_STOP",
    "user_canceled": "EXITED_REASON_USER_CANCELED",
    "errored": "EXITED_REASON_UNSPECIFIED",
}
_INACTIVE_ID = -1


def events_to_wire(queue: list[dict[str, Any]], state: ExperimentState) -> list[dict[str, Any]]:
    """The events that wait for an answer; of an experiment that is not active, that it is not."""
    if state is not ExperimentState.ACTIVE:
        return [{"id": _INACTIVE_ID, "experimentInactive": {"experimentState": f"STATE_{state.value}"}}]
    return [_event_to_wire(entry) for entry in queue]


def _event_to_wire(entry: dict[str, Any]) -> dict[str, Any]:
    event = cast("dict[str, Any]", entry["event"])
    about = {"requestId": event.get("request_id")}
    match event["kind"]:
        case "initial_operations":
            body = {"initialOperations": {"placeholder": 0}}
        case "trial_created":
            body = {"trialCreated": about}
        case "trial_closed":
            body = {"trialClosed": about}
        case "trial_progress":
            body = {"trialProgress": {**about, "partialUnits": event["units"]}}
        case "trial_exited_early":
            body = {"trialExitedEarly": {**about, "exitedReason": _REASONS[event["reason"]]}}
        case "validation_completed":
            length = str(event["length"])
            body = {"validationCompleted": {**about, "metric": plain(event["metric"]), "validateAfterLength": length}}
        case kind:
            raise ValueError(f"no such event in a custom search: {kind}")
    return {"id": entry["id"], **body}


def operations_from_wire(sent: PostSearcherOperations) -> OperationsPosted:
    """What the program decided. Raises: BadRequest, which names the operation."""
    operations = [
        _operation(operation, f"searcherOperations.{n}") for n, operation in enumerate(sent.searcher_operations)
    ]
    trigger = sent.triggered_by_event
    return OperationsPosted(triggered_by=None if trigger is None else trigger.id, operations=operations)


def _operation(sent: dict[str, Any], where: str) -> PostedOperation:
    given: list[tuple[str, Any]] = [(kind, body) for kind, body in sent.items() if body is not None]
    if len(given) != 1:
        raise BadRequest(f"{where}: expected exactly one operation, got {sorted(kind for kind, _ in given)}")
    kind, body = given[0]
    if kind == "trialOperation":
        nested = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
        kind, body = "validateAfter", nested.get("validateAfter")
    if not isinstance(body, dict):
        raise BadRequest(f"{where}.{kind}: expected an object, got {str(body)[:80]!r}")
    fields = cast("dict[str, Any]", body)
    match kind:
        case "createTrial":
            return Create(
                request_id=_request_id(fields, where),
                trial_seed=42,
                hparams=_hparams(fields, where),
                checkpoint=_checkpoint(fields, where),
            )
        case "validateAfter":
            return TrainTo(request_id=_request_id(fields, where), length=_length(fields, where))
        case "closeTrial":
            return Close(request_id=_request_id(fields, where))
        case "setSearcherProgress":
            progress = fields.get("progress", 0)
            if isinstance(progress, bool) or not isinstance(progress, int | float):
                raise BadRequest(f"{where}.progress: expected a number, got {progress!r}")
            return SetProgress(progress=float(progress))
        case "shutDown":
            return Shutdown(failure=bool(fields.get("failure", False)), cancel=bool(fields.get("cancel", False)))
        case _:
            raise BadRequest(
                f"{where}: no such operation: {kind!r}, expected createTrial, trialOperation, closeTrial, "
                "setSearcherProgress or shutDown"
            )


def _request_id(fields: dict[str, Any], where: str) -> str:
    value = fields.get("requestId")
    try:
        return str(uuid.UUID(str(value)))
    except ValueError:
        raise BadRequest(f"{where}.requestId: expected a uuid, got {str(value)[:80]!r}") from None


def _length(fields: dict[str, Any], where: str) -> int:
    value = fields.get("length")
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < 1:
        raise BadRequest(f"{where}.length: expected a whole number above 0, got {text[:80]!r}")
    return int(text)


def _hparams(fields: dict[str, Any], where: str) -> dict[str, Any]:
    text = fields.get("hyperparams")
    try:
        value = orjson.loads(text) if isinstance(text, str) else text
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise BadRequest(f"{where}.hyperparams: expected a JSON object as text, got {str(text)[:80]!r}")
    return cast("dict[str, Any]", value)


def _checkpoint(fields: dict[str, Any], where: str) -> str | None:
    given = fields.get("checkpoint")
    value: Any = cast("dict[str, Any]", given).get("uuid") if isinstance(given, dict) else given
    if value is None:
        return None
    return _request_id({"requestId": value}, f"{where}.checkpoint")
