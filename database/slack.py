"""Events as Slack's incoming webhooks take them: a headline, and an attachment with what there is to know.

`text` is what Slack shows where it has no room for blocks. Users write names, log lines and messages: none of them may
call a channel, or pass for a link of ours, so that what Slack would read as such is escaped.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

#: Slack refuses sections of more than 3,000 characters, and fields of more than 2,000.
_LONGEST, _LONGEST_FIELD = 2900, 1900
_COLORS = {"COMPLETED": "#13B670", "ERROR": "#DD5040", "CANCELED": "#8A8A8A"}
_HEADLINES = {
    "COMPLETED": "Your experiment completed successfully 🎉",
    "ERROR": "Your experiment has stopped with errors",
    "CANCELED": "Your experiment was canceled",
    "PAUSED": "Your experiment is paused",
    "ACTIVE": "Your experiment is active",
}
_MARKS = {"COMPLETED": " ✅", "ERROR": " ❌"}


def message(data: dict[str, Any], condition: dict[str, Any], text: str) -> dict[str, Any]:
    """The body that tells of an event.

    Args:
        data: `event_data` of the event.
        condition: Of the trigger.
        text: The event in one sentence.
    """
    experiment: dict[str, Any] | None = data.get("experiment")
    payload: dict[str, Any] = {"text": _cut(escaped(text), _LONGEST)}
    if "task_log" in data:
        payload["blocks"] = _log_blocks(data["task_log"], str(condition.get("regex", "")))
    elif "custom" in data:
        custom = data["custom"]
        payload["blocks"] = [
            _section(f"*{escaped(custom.get('title') or 'A message of an experiment')}*{_level(custom)}"),
            *([_section(escaped(custom["description"]))] if custom.get("description") else []),
        ]
    elif "metric" in data:
        payload["blocks"] = [_section(escaped(text))]
    elif experiment is not None:
        headline = _HEADLINES.get(str(experiment["state"]), text)
        payload["blocks"] = [{"type": "section", "text": {"type": "plain_text", "text": headline}}]
    else:
        payload["blocks"] = [{"type": "section", "text": {"type": "plain_text", "text": text[:_LONGEST]}}]
    if experiment is not None:
        payload["attachments"] = [_attachment(experiment)]
    return payload


def _log_blocks(found: dict[str, Any], regex: str) -> list[dict[str, Any]]:
    where = (
        f"Experiment ID: `{found['experiment_id']}`, trial ID: `{found['trial_id']}`, " if "trial_id" in found else ""
    )
    node = f", running on node `{escaped(found['node_name'])}`," if found.get("node_name") else ""
    return [
        _section(f"{where}task `{escaped(found['task_id'])}`{node} reported a log line"),
        _section(_quoted(found["triggering_log"])),
        _section("This line matched the regular expression"),
        _section(_quoted(regex)),
    ]


def _level(custom: dict[str, Any]) -> str:
    """How urgent the code of the experiment called it, if it did."""
    level = str(custom.get("level") or "UNSPECIFIED")
    return "" if level == "UNSPECIFIED" else f" ({level.lower()})"


def _attachment(experiment: dict[str, Any]) -> dict[str, Any]:
    state = str(experiment["state"])
    fields = {
        "Status": f"{state.capitalize()}{_MARKS.get(state, '')}",
        "Duration": str(timedelta(seconds=int(experiment["duration"]))),
        "Workspace": experiment["workspace"],
        "Project": experiment["project"],
    }
    block = _section(f"*{escaped(experiment['name'])}* (#{experiment['id']})")
    block["fields"] = [
        _text(f"*{name}*: {escaped(str(value))}", longest=_LONGEST_FIELD) for name, value in fields.items()
    ]
    return {"color": _COLORS.get(state, "#3875F6"), "blocks": [block]}


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _text(text)}


def _text(text: str, *, longest: int = _LONGEST) -> dict[str, Any]:
    return {"type": "mrkdwn", "text": _cut(text, longest)}


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def _quoted(text: str) -> str:
    """As code; cut before the marks that end it."""
    return f"```{escaped(text)[: _LONGEST - 10].replace('```', '` ` `')}```"


def escaped(text: str) -> str:
    """Text that Slack shows as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
