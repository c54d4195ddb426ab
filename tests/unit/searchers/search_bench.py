"""Runs searches without a cluster: shared by the tests of the methods."""

from collections.abc import Callable
from typing import Any

from workflows.config import ExperimentConfig, parse_experiment_config
from workflows.searchers import (
    Action,
    Close,
    Create,
    Event,
    ExitReason,
    OperationCompleted,
    Search,
    Shutdown,
    Started,
    Stop,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
    ValidationReported,
)


def config(searcher: dict[str, Any], space: dict[str, Any] | None = None, seed: int = 1) -> ExperimentConfig:
    return parse_experiment_config(
        {
            "entrypoint": "python3 train.py",
            "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}} if space is None else space,
            "searcher": {"metric": "loss", **searcher},
            "checkpoint_storage": {"type": "directory", "container_path": "/checkpoints"},
        },
        seed=seed,
    )


class Bench:
    """A search under test. Trials are called 1, 2, … in order of creation; the state makes a round trip each time."""

    def __init__(self, searcher: dict[str, Any], space: dict[str, Any] | None = None, seed: int = 1, **new: Any):
        self.search = Search.new(config(searcher, space, seed), **new)
        self.ids: list[str] = []
        self.hparams: list[dict[str, Any]] = []
        self.lengths: list[list[int]] = []
        self.pending: list[Action] = []
        self.shutdowns: list[Shutdown] = []

    def send(self, event: Event) -> list[str]:
        text = self.search.model_dump_json()
        self.search = Search.model_validate_json(text)
        assert self.search.model_dump_json() == text
        return [self._name(action) for action in self.search.handle(event)]

    def _name(self, action: Action) -> str:
        if isinstance(action, Create):
            self.ids.append(action.request_id)
            self.hparams.append(action.hparams)
            self.lengths.append([])
            return f"create {len(self.ids)}"
        if isinstance(action, Shutdown):
            self.shutdowns.append(action)
            return "shutdown " + ("error" if action.failure else "canceled" if action.cancel else "completed")
        number = self.ids.index(action.request_id) + 1
        if isinstance(action, TrainTo):
            self.lengths[number - 1].append(action.length)
            return f"train {number} to {action.length}"
        return f"{'stop' if isinstance(action, Stop) else 'close'} {number}"

    def start(self) -> list[str]:
        return self.send(Started())

    def report(self, number: int, **metrics: Any) -> list[str]:
        return self.send(ValidationReported(request_id=self.ids[number - 1], metrics=metrics))

    def complete(self, number: int, metric: Any, length: int | None = None) -> list[str]:
        request_id = self.ids[number - 1]
        given = self.search.trial(request_id).length if length is None else length
        assert given is not None
        return self.send(OperationCompleted(request_id=request_id, length=given, metric=metric))

    def close(self, number: int) -> list[str]:
        return self.send(TrialClosed(request_id=self.ids[number - 1]))

    def exit(self, number: int, reason: str | None = None) -> list[str]:
        """A trial ends, early if there is a reason."""
        actions: list[str] = []
        if reason is not None:
            actions = self.send(TrialExitedEarly(request_id=self.ids[number - 1], reason=ExitReason(reason)))
        return actions + self.close(number)

    def run_ops(self, metric: Callable[[int], Any], *, fails: dict[tuple[int, int], str] | None = None) -> None:
        """Run a search of the ops generation to its end, one trial after the other, oldest first.

        Args:
            metric: Of a trial, by number from 1.
            fails: Exit reason by (trial, place of the operation from 0); it exits instead of completing it.
        """
        self.start()
        while not self.shutdowns:
            for number, request_id in enumerate(self.ids, 1):
                trial = self.search.trial(request_id)
                if trial.ended:
                    continue
                if trial.length is not None and not trial.completed:
                    reason = (fails or {}).get((number, len(self.lengths[number - 1]) - 1))
                    if reason is not None:
                        self.exit(number, reason)
                    else:
                        self.complete(number, metric(number))
                    break
                if trial.closed:
                    self.close(number)
                    break
            else:
                raise AssertionError("nobody can go on")


def closing(action: Action) -> bool:
    return isinstance(action, Close | Stop)
