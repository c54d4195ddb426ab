"""The cluster that these tests share. It goes with the last of them, as it takes memory and processor time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.machine import Machine, in_environment


@pytest.fixture(scope="package", autouse=True)
def node() -> Iterator[Machine]:
    """A cluster of one node, this machine; `KUBECONFIG` names it, and `kubectl` is on the path."""
    with in_environment() as running:
        yield running
