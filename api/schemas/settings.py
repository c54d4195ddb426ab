"""What the web UI stores for a user. Names and fields: spec rest-api.md §6."""

from __future__ import annotations

from pydantic import Field

from api.schemas.base import Wire, example


class UserWebSetting(Wire):
    """v1UserWebSetting."""

    key: str
    storage_path: str = ""
    value: str = ""


class PostUserSettingRequest(
    Wire, json_schema_extra=example({"settings": [{"storagePath": "table", "key": "columns", "value": "[]"}]})
):
    """v1PostUserSettingRequest: a list, or one of them as 0.21 sends it."""

    settings: list[UserWebSetting] = Field(default_factory=list[UserWebSetting])
    setting: UserWebSetting | None = None
    storage_path: str = ""


class UserSettingsResponse(Wire):
    """User settings, as recorded."""

    settings: list[UserWebSetting]
