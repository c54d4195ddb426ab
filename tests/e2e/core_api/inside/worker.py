"""What the checks have in common: this worker of the trial, the register, and how to expect something."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import determined as det
from determined import core

LIMIT_S = 120.0
"""How long a check waits for what others do."""
MARK = "core-api-check "
"""Begins the lines of the log that tell how a check went."""
STATUS = "ready to be preempted"
"""What `set_status` says when the test is to pause the experiment."""


class Worker:
    """This worker, and what the checks leave for those after them.

    Args:
        info: Of this task.
        distributed: None in a trial of one worker.
    """

    def __init__(self, info: det.ClusterInfo, distributed: core.DistributedContext | None) -> None:
        self.info = info
        self.distributed = distributed or core.DistributedContext(
            rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1
        )
        self.rank = self.distributed.rank
        self.size = self.distributed.size
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"core-api-{self.rank}-"))
        self.kept: dict[str, Any] = {}
        self._contexts = 0
        self._stack = contextlib.ExitStack()

    @property
    def context(self) -> core.Context:
        """The one that most checks use; `core.init` makes it."""
        return self.kept["context"]

    @property
    def is_chief(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def close(self) -> None:
        """Close the context."""
        self._stack.close()

    def begin(self, **options: Any) -> None:
        """Make `context`."""
        self.kept["context"] = self._stack.enter_context(core.init(distributed=self.distributed, **options))

    def made(self, **options: Any) -> core.Context:
        """A further context, of workers that meet anew; in the mode that copies nothing for TensorBoard by itself."""
        options = {"tensorboard_mode": core.TensorboardMode.MANUAL, **options}
        return core.init(distributed=self.meet(), **options)

    def meet(self) -> core.DistributedContext:
        """A further `DistributedContext`; its workers meet beside those of the others."""
        self._contexts += 1
        dist = self.distributed
        return core.DistributedContext(
            **{name: getattr(dist, name) for name in ("rank", "size", "local_rank", "local_size")},
            cross_rank=0,
            cross_size=1,
            port_offset=100 * self._contexts,
        )

    def part(self, name: str) -> pathlib.Path:
        """A folder with what this worker adds to a checkpoint: a file named by its rank, and one to leave out."""
        folder = self.folder / name
        (folder / "parts").mkdir(parents=True)
        (folder / "parts" / f"rank{self.rank}.txt").write_text(f"{name} of rank {self.rank}")
        (folder / f"left-out-{self.rank}.tmp").write_text("")
        return folder


class Check(NamedTuple):
    """One check. It runs in one phase; a method may be checked in several."""

    name: str
    phase: str
    run: Callable[[Worker], Any]


CHECKS: list[Check] = []


def check(name: str, phase: str = "first") -> Callable[[Callable[[Worker], Any]], Callable[[Worker], Any]]:
    """Register a check.

    Args:
        name: Of the method, as documented; in parentheses behind it what is particular.
        phase: "first", which ends in a preemption, "resumed", the run after it, or "leaving", a trial that gives up.
    """

    def register(function: Callable[[Worker], Any]) -> Callable[[Worker], Any]:
        CHECKS.append(Check(name, phase, function))
        return function

    return register


def expect(condition: object, said: object = "") -> None:
    """`assert`, whatever the options of the interpreter."""
    if not condition:
        raise AssertionError(said)


def equal(found: object, wanted: object) -> None:
    """They must be equal."""
    expect(found == wanted, f"{found!r}, but {wanted!r} was expected")


@contextlib.contextmanager
def refused(kind: type[Exception], text: str) -> Generator[None]:
    """The block must raise an error that says this."""
    try:
        yield
    except kind as e:
        expect(text in str(e), f"{e!r} does not say {text!r}")
        return
    raise AssertionError(f"no {kind.__name__} was raised")


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        expect(time.monotonic() < deadline, f"waited {LIMIT_S:g} s until {what}")
        time.sleep(0.02)


def preempt_threads() -> int:
    """How many threads of this process ask the master whether to leave."""
    return sum(thread.name == "determined-preempt" for thread in threading.enumerate())
