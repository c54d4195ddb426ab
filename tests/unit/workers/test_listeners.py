"""Where an API listens, and what it says if it can't."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from api.settings import ApiSettings
from tests.kit.servers import free_port
from workers.api import listeners
from workers.connect import GivenUp


@pytest.mark.parametrize("taken", ["port", "proxy_port"])
def test_port_that_another_program_has_is_named_with_its_setting(taken: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        values: dict[str, Any] = {"port": free_port(), "proxy_port": free_port(), taken: port}
        settings = ApiSettings(database_url="sqlite://", agent_token="x", **values)  # pyright: ignore[reportArgumentType]
        with pytest.raises(GivenUp, match=f"UNDETERRED_{taken.upper()}: {port}: .* Address already in use"):
            listeners(settings)
