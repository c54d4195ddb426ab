"""The settings of the connection to Temporal: errors name wrong files and values, and files are read again."""

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from api.pem import CantUse
from api.settings import TemporalSettings
from api.temporal.connection import Connection
from tests.kit.certificates import Authority
from workers.settings import AgentSettings


def files(folder: Path) -> dict[str, str]:
    """The files of a client, and wrong ones."""
    authority = Authority(folder)
    ca, (certificate, key), (_, other) = authority.file, authority.issue("client"), authority.issue("other")
    (folder / "empty").touch()
    (folder / "keys").write_text("a c2hvcnQ=")
    return {"ca": str(ca), "certificate": str(certificate), "key": str(key), "other": str(other),
            "empty": str(folder / "empty"), "keys": str(folder / "keys")}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temporal_ca_file": "/nowhere"}, "temporal_ca_file: '/nowhere': .*No such file"),
        ({"temporal_ca_file": "{key}"}, "temporal_ca_file: .*expected a file with certificates in PEM"),
        ({"temporal_cert_file": "{certificate}", "temporal_key_file": "{ca}"}, "temporal_key_file: .*private key"),
        ({"temporal_cert_file": "{certificate}", "temporal_key_file": "{other}"}, "expected the key of the first"),
        ({"temporal_api_key_file": "{empty}"}, "temporal_api_key_file: .*API key in one line"),
        ({"temporal_encryption_keys_file": "{keys}"}, "temporal_encryption_keys_file: .*5 bytes: expected 32"),
    ],
)
def test_wrong_file_is_named_with_its_setting(tmp_path: Path, settings: dict[str, str], expected: str) -> None:
    there = files(tmp_path)
    with pytest.raises(CantUse, match=expected):
        Connection(TemporalSettings(**{name: path.format(**there) for name, path in settings.items()}))  # pyright: ignore


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temporal_address": "localhost"}, "temporal_address"),
        ({"temporal_namespace": "a b"}, "temporal_namespace"),
        ({"temporal_cert_file": "/x"}, "expected both or neither"),
        ({"temporal_api_key": "a", "temporal_api_key_file": "/x"}, "expected at most one"),
        ({"temporal_tls": False, "temporal_ca_file": "/x"}, "temporal_ca_file is set"),
    ],
)
def test_settings_that_contradict_are_refused(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        TemporalSettings(**settings)


def test_agent_behind_a_gateway_has_no_keys() -> None:
    with pytest.raises(ValidationError, match="temporal_encryption_keys_file: expected none behind a gateway"):
        AgentSettings(agent_id="a", slots=0, api_url="", agent_token="x", folder="", is_behind_gateway=True,
                      temporal_encryption_keys_file="/x")  # pyright: ignore # fmt: skip


def test_api_key_is_the_one_that_its_file_holds_now(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("first\n")
    connection = Connection(TemporalSettings(temporal_api_key_file=str(path), temporal_namespace="ours"))
    assert connection.metadata() == [("authorization", "Bearer first"), ("temporal-namespace", "ours")]
    later = tmp_path / "later"
    later.write_text("second\n")
    os.replace(later, path)
    assert connection.metadata()[0] == ("authorization", "Bearer second")
    path.write_text("")
    assert connection.metadata()[0] == ("authorization", "Bearer second"), "a torn file changes nothing"
    path.unlink()
    assert connection.metadata()[0] == ("authorization", "Bearer second")
