"""The activities that workflows call and those that workers register are the same: names, signatures, messages."""

from __future__ import annotations

import inspect
import typing
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from temporalio import activity
from temporalio.client import Client

from activities.containers import AgentPresence, Containers
from activities.launchers.kubernetes.namespaces import Namespaces
from activities.launchers.kubernetes.nodes import Nodes
from activities.messenger import Messenger
from activities.storage import Storage
from database.session import Database
from workers.orchestrator import record_activities
from workflows import calls


def name_of(function: Callable[..., Any]) -> str:
    definition = activity._Definition.from_callable(function)
    return definition.name or "" if definition else ""


def activities_of(owner: object) -> list[Callable[..., Any]]:
    """What carries `@activity.defn` in a module or a class."""
    found = [value for _, value in inspect.getmembers(owner, callable) if not inspect.isclass(value)]
    return [value for value in found if name_of(value)]


def shape(function: Callable[..., Any]) -> tuple[list[object], object, bool]:
    """Types of the arguments without self, type of the result, and whether it must be awaited."""
    hints = typing.get_type_hints(function)
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    return [hints[name] for name in parameters], hints["return"], inspect.iscoroutinefunction(function)


STUBS = {name_of(stub): stub for stub in activities_of(calls)}


@pytest.fixture
def registered(tmp_path: Path) -> list[Any]:
    """Everything that the orchestrator and the agents register."""
    database = Database(f"sqlite:///{tmp_path / 'empty.db'}")
    agents = [*activities_of(Containers), *activities_of(AgentPresence), *activities_of(Storage)]
    agents += [*activities_of(Nodes), *activities_of(Namespaces)]
    messenger = Messenger(cast("Client", None), AsyncMock())
    with ThreadPoolExecutor(1) as threads:
        found = [*record_activities(database, threads=threads, messenger=messenger), *agents]
    database.close()
    return found


def test_each_stub_has_one_implementation_when_workers_register(registered: list[Any]) -> None:
    assert Counter(name_of(function) for function in registered) == Counter(STUBS.keys())


def test_signatures_agree_when_stub_and_implementation_are_compared(registered: list[Any]) -> None:
    assert {name_of(function): shape(function) for function in registered} == {
        name: shape(stub) for name, stub in STUBS.items()
    }


@pytest.mark.parametrize("name", STUBS)
def test_stub_bears_the_name_of_its_activity_and_one_message_when_called(name: str) -> None:
    assert getattr(STUBS[name], "__name__", None) == name
    arguments, _, _ = shape(STUBS[name])
    assert len(arguments) == 1


@pytest.mark.parametrize("name", STUBS)
def test_stub_only_raises_when_called_by_mistake(name: str) -> None:
    stub: Any = STUBS[name]
    if inspect.iscoroutinefunction(stub):
        with pytest.raises(NotImplementedError):
            stub(None).send(None)
    else:
        with pytest.raises(NotImplementedError):
            stub(None)
