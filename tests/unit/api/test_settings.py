"""Settings from the environment: typed, secret where they must be, and refused with their names."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from api.settings import ApiSettings, from_environment

LEAST = {"UNDETERRED_DATABASE_URL": "sqlite:///x.db", "UNDETERRED_AGENT_TOKEN": "a-long-secret"}


def settings(**more: str) -> ApiSettings:
    return from_environment(ApiSettings, LEAST | {f"UNDETERRED_{name}": value for name, value in more.items()})


def test_defaults_hold_when_only_the_required_is_given() -> None:
    found = settings()
    assert found.database_url == "sqlite:///x.db"
    assert (found.port, found.session_days, found.admin_password) == (8080, 7, None)
    assert found.timing.preemption_timeout_s == 3600


def test_values_get_their_types_when_given_as_text() -> None:
    found = settings(PORT="9000", TIMING='{"restart_backoff_s": 0.5}', STORAGE_PATH="/data")
    assert (found.port, found.storage_path) == (9000, "/data")
    assert (found.timing.restart_backoff_s, found.timing.kill_repeat_s) == (0.5, 30.0)


def test_secrets_are_hidden_when_settings_are_printed() -> None:
    found = settings(ADMIN_PASSWORD="hunter2")
    assert "hunter2" not in repr(found)
    assert "a-long-secret" not in f"{found!r} {found.model_dump_json()}"
    assert found.admin_password is not None
    assert found.admin_password.get_secret_value() == "hunter2"


def test_other_variables_are_left_alone_when_they_are_not_ours() -> None:
    assert (
        from_environment(ApiSettings, LEAST | {"PORT": "1", "UNDETERRED_AGENT_ID": "x", "undeterred_port": "2"}).port
        == 8080
    )


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("PORT", "http", "port"),
        ("PORT", "0", "port"),
        ("PORT", "65536", "port"),
        ("SESSION_DAYS", "0", "session_days"),
        ("AGENT_TOKEN", "", "agent_token"),
        ("TIMING", "fast", "Invalid JSON"),
        ("TIMING", '{"kill_repeat_s": "soon"}', "kill_repeat_s"),
    ],
)
def test_value_is_refused_by_name_when_it_is_wrong(name: str, value: str, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        settings(**{name: value})


def test_missing_value_is_named_when_it_is_required() -> None:
    with pytest.raises(ValidationError, match="database_url"):
        from_environment(ApiSettings, {"UNDETERRED_AGENT_TOKEN": "x" * 20})


def test_process_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LEAST.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("UNDETERRED_CLUSTER_NAME", "here")
    assert from_environment(ApiSettings).cluster_name == "here"
