"""What several workers do together: each step succeeds for all of them or fails for all of them."""

from __future__ import annotations

from determined import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn, TypeVar

    from determined.core._distributed import DistributedContext

    T = TypeVar("T")

# What training code may go on after, it must be able to go on after on every worker, and what ends a task ends all.
_KNOWN = (errors.AllocationEnded, errors.CheckpointCorruptError, errors.CheckpointNotFound)


class Team:
    """Workers that call the same methods in the same order.

    Args:
        rank: Which of them this one is.
        size: How many they are.
        allgather, broadcast: How they exchange objects; not called if this one is alone.
    """

    def __init__(
        self, rank: int, size: int, allgather: Callable[[Any], list[Any]], broadcast: Callable[[Any], Any]
    ) -> None:
        self.rank = rank
        self.size = size
        self._allgather = allgather
        self._broadcast = broadcast

    @classmethod
    def of_all(cls, dist: DistributedContext) -> Team:
        """All workers of the job."""
        return cls(dist.rank, dist.size, dist.allgather, dist.broadcast)

    @classmethod
    def of_machine(cls, dist: DistributedContext) -> Team:
        """The workers of this machine."""
        return cls(dist.local_rank, dist.local_size, dist.allgather_local, dist.broadcast_local)

    @classmethod
    def alone(cls) -> Team:
        """This worker only."""
        return cls(0, 1, lambda mine: [mine], lambda mine: mine)

    def each(self, action: Callable[[], T]) -> list[T]:
        """What `action` returns on each worker, by rank.

        Raises:
            Whatever `action` raised here, once the others know.
            CheckpointException: It failed on another worker.
        """
        try:
            mine = action()
        except Exception as e:  # noqa: BLE001 - whatever it is, the others would wait for ever
            self.fail(e)
        if self.size == 1:
            return [mine]
        return self._checked(self._allgather((mine, None)))

    def fail(self, error: Exception) -> NoReturn:
        """Tell the others, who are at their next `each`, and raise the error."""
        if self.size > 1:
            self._allgather((None, (type(error).__name__, str(error))))
        raise error

    def first(self, action: Callable[[], T]) -> T:
        """What `action` returns on the worker of rank 0, the only one that calls it.

        Raises:
            Whatever it raised there; CheckpointException on the other workers.
        """
        if self.size == 1:
            return action()
        if self.rank == 0:
            try:
                mine = action()
            except Exception as e:
                self._broadcast((None, (type(e).__name__, str(e))))
                raise
            self._broadcast((mine, None))
            return mine
        return self._checked([self._broadcast(None)])[0]

    def meet(self) -> None:
        """Returns when all have come here."""
        if self.size > 1:
            self._allgather(None)

    def _checked(self, told: list[Any]) -> list[Any]:
        for rank, (_, problem) in enumerate(told):
            if problem is not None:
                kind, message = problem
                known = {e.__name__: e for e in _KNOWN}
                raise known.get(kind, errors.CheckpointException)(f"worker {rank} failed: {kind}: {message}")
        return [mine for mine, _ in told]
