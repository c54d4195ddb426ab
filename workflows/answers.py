"""Records that workflows of experiments give with their answers, for the sender of what is answered to write.

See docs/adr/0084. A sender that fails to write one sends its message again, and gets the record again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable

from workflows import names
from workflows.messages import RecordExperiment

#: Of the experiments that answered last it is known what was written; others give a little to be written once more.
_KNOWN = 10_000


class AnsweredRecords:
    """The records that came to this process.

    Args:
        write: Writes one; returns when it is committed.
    """

    def __init__(self, write: Callable[[RecordExperiment], Awaitable[object]]) -> None:
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
