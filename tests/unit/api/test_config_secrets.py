"""Keys of checkpoint storage and of a registry are shown to nobody."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.auth import config_secrets

S3 = {"type": "s3", "bucket": "b", "access_key": "AKIA", "secret_key": 's3"cr\\et', "endpoint_url": None}


@pytest.mark.parametrize(
    ("section", "hidden"),
    [
        (S3, {"access_key", "secret_key"}),
        ({"type": "azure", "container": "c", "connection_string": "Account=1;Key=2"}, {"connection_string"}),
        ({"type": "azure", "container": "c", "account_url": "https://a", "credential": "k"}, {"credential"}),
        ({"type": "s3", "bucket": "b", "access_key": None, "secret_key": None}, set()),
        ({"type": "shared_fs", "host_path": "/x"}, set()),
    ],
)
def test_keys_are_masked_and_nothing_else(section: dict[str, Any], hidden: set[str]) -> None:
    config = {"name": "n", "hyperparameters": {"secret_key": 1}, "checkpoint_storage": section}
    expected = {**config, "checkpoint_storage": {**section, **dict.fromkeys(hidden, "********")}}
    assert config_secrets.shown(config) == expected
    assert json.loads(config_secrets.shown_texts(config, json.dumps(config), "")[0]) == expected
    assert config["checkpoint_storage"] == section, "what is stored stays"


def test_configuration_without_keys_is_not_written_again() -> None:
    text = '{"name":  "a"}'
    assert config_secrets.shown_texts({"name": "a"}, text, "name: a") == (text, "name: a")
    assert config_secrets.shown_texts({"name": "a"}, text, "name: a")[0] is text
    assert config_secrets.shown({"name": "a"}) == {"name": "a"}


def test_keys_are_masked_in_what_a_user_sent() -> None:
    sent = "checkpoint_storage: {type: s3, access_key: AKIA, secret_key: 's3\"cr\\et'}  # mine\n"
    config = {"checkpoint_storage": S3}
    _, shown = config_secrets.shown_texts(config, json.dumps(config), sent)
    assert shown == "checkpoint_storage: {type: s3, access_key: ********, secret_key: '********'}  # mine\n"


LOGIN = {"username": "ada", "password": "lovelace", "auth": "YWRh", "identitytoken": "id", "registrytoken": None}


def test_login_of_a_registry_is_masked_but_for_whose_it_is() -> None:
    config = {"name": "n", "environment": {"image": "a", "registry_auth": LOGIN}, "checkpoint_storage": S3}
    shown = config_secrets.shown(config)
    masked = {"password": "********", "auth": "********", "identitytoken": "********"}
    assert shown["environment"] == {"image": "a", "registry_auth": LOGIN | masked}
    assert shown["checkpoint_storage"]["secret_key"] == "********"
    sent = "environment: {registry_auth: {username: ada, password: lovelace}}"
    assert config_secrets.shown_texts(config, json.dumps(config), sent)[1] == sent.replace("lovelace", "********")
    assert config["environment"]["registry_auth"] is LOGIN, "what is stored stays"


@pytest.mark.parametrize("environment", [None, {}, {"registry_auth": None}, {"registry_auth": LOGIN, "image": "a"}])
def test_containers_do_not_get_the_login(environment: dict[str, Any] | None) -> None:
    config = {"name": "n", "environment": environment}
    found = config_secrets.without_registry_auth(config)
    assert "lovelace" not in json.dumps(found)
    assert (found["environment"] or {}).get("registry_auth") is None
    assert found["name"] == "n"
