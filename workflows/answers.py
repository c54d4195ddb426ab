"""Records that workflows of experiments give with their answers, for the sender of what is answered to write.

See docs/adr/0084. A sender that fails to write one, or to start its trials, sends its message again, and gets it again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from workflows import names
from workflows.messages import NewTrial, RecordExperiment, TrialStanding, TrialStart
from workflows.searchers import Decision

#: Of the experiments that answered last it is known what was written; others give a little to be written once more.
_KNOWN = 10_000


@dataclass
class _Given:
    revision: int
    decisions: Sequence[Decision]
    trials: Sequence[NewTrial]
    standings: Sequence[TrialStanding]


class GivenRecords:
    """What a workflow gave away with answers, as long as it may not be written yet, or its trials not be started."""

    def __init__(self) -> None:
        self._unwritten: list[_Given] = []
        self._starts: dict[str, tuple[int, TrialStart]] = {}  # by request id, with the revision

    def __bool__(self) -> bool:
        return self.is_unwritten or bool(self._starts)

    @property
    def is_unwritten(self) -> bool:
        """Whether there is a record that may not be written."""
        return bool(self._unwritten)

    @property
    def decisions(self) -> list[Decision]:
        """Those that may not be written, in their order."""
        return [each for given in self._unwritten for each in given.decisions]

    @property
    def trials(self) -> list[NewTrial]:
        """Those that may not be written."""
        return [each for given in self._unwritten for each in given.trials]

    @property
    def standings(self) -> list[TrialStanding]:
        """Those that may not be written, in their order."""
        return [each for given in self._unwritten for each in given.standings]

    @property
    def starts(self) -> list[TrialStart]:
        """Trials that may not be started."""
        return [start for _, start in self._starts.values()]

    def give_starts(self) -> list[TrialStart]:
        """The same, to be started by who gets them: they are repeats from now on."""
        given = self.starts
        repeats = {"is_repeat": True}
        self._starts = {key: (at, start.model_copy(update=repeats)) for key, (at, start) in self._starts.items()}
        return given

    def add(
        self,
        revision: int,
        decisions: Sequence[Decision],
        trials: Sequence[NewTrial],
        standings: Sequence[TrialStanding],
        starts: Sequence[TrialStart],
    ) -> None:
        """What is given away now, as fields of a record."""
        self._unwritten.append(_Given(revision, decisions, trials, standings))
        self._starts |= {start.request_id: (revision, start) for start in starts}

    def take(self) -> GivenRecords:
        """All of it, to be recorded by an activity: here is nothing any more."""
        taken = GivenRecords()
        taken._unwritten, self._unwritten = self._unwritten, []
        taken._starts, self._starts = self._starts, {}
        return taken

    def note_written(self, revision: int, *, starts: bool = False) -> None:
        """The record of a revision is written, and so are all before it: each has what is not known to be.

        `starts`: their trials are started as well.
        """
        self._unwritten = [given for given in self._unwritten if given.revision > revision]
        if starts:
            self._starts = {key: (at, start) for key, (at, start) in self._starts.items() if at > revision}

    def note_started(self, request_id: str) -> None:
        """A trial runs, or did."""
        self._starts.pop(request_id, None)


class AnsweredRecords:
    """The records that came to this process.

    Args:
        write: Writes one; returns when it is committed.
        starts: Whether `write` also starts the trials that it has, and returns when they are started.
    """

    def __init__(self, write: Callable[[RecordExperiment], Awaitable[object]], *, starts: bool = False) -> None:
        self.starts = starts
        self._write = write
        self._written: OrderedDict[str, int] = OrderedDict()

    def written(self, workflow_id: str) -> int:
        """The newest revision of an experiment that was written here; 0: none, or not for long."""
        return self._written.get(workflow_id, 0)

    async def write(self, record: RecordExperiment | None) -> None:
        """Write what came with an answer, if anything did. Raises what writing raises."""
        if record is None:
            return
        await self._write(record)
        workflow_id = names.experiment_workflow(record.experiment_id)
        self._written[workflow_id] = max(record.revision, self.written(workflow_id))
        self._written.move_to_end(workflow_id)
        if len(self._written) > _KNOWN:
            self._written.popitem(last=False)
