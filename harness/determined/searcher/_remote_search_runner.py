"""A custom search whose method runs on the cluster, as a trial of its own."""

from __future__ import annotations

from determined import errors
from determined.searcher import _experiment, _saved
from determined.searcher._search_runner import SearchRunner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined.core import Context
    from determined.searcher._operations import Operation
    from determined.searcher._search_method import SearchMethod

# The cluster may learn of a checkpoint a moment after it was reported, so the one before it stays, too.
_KEPT_CHECKPOINTS = 2


class RemoteSearchRunner(SearchRunner):
    """Runs a search inside of a trial, which the cluster restarts and moves as any other.

    The state is saved as checkpoints of that trial, one an event, of which the last two are kept; a restarted trial
    goes on with the same experiment. When the trial is asked to make room, `run` ends the process with exit code 0
    (SystemExit), and goes on when the trial is back. One search a trial.

    Args:
        search_method: The method, as for a start; its state is loaded when there is one.
        context: From `core.init()`.
    """

    def __init__(self, search_method: SearchMethod, context: Context) -> None:
        super().__init__(search_method)
        self.context = context
        self._checkpoints: list[str] = []
        self._deletes = True

    def run(self, exp_config: dict[str, Any] | str, model_dir: str | None = None) -> int:
        """Create the experiment, or find it, and run its search to the end.

        Args:
            exp_config: The experiment's configuration, with the searcher `custom`: a YAML file or a dictionary.
            model_dir: The directory with the training code; by default the working directory.

        Returns:
            The experiment's id. See `state.experiment_completed` for how it ended.

        Raises:
            ValueError: The configuration is not one of a custom search.
            SystemExit: This trial is asked to make room.
            APIException: The master refuses the experiment or the operations, or can't be reached to create it.
            Exception: What the method raised. The experiment was ordered to end as ERROR.
        """
        import determined

        text = _experiment.config_text(exp_config)
        session = _experiment.session_of_client()
        info = determined.get_cluster_info()
        operations: list[Operation] | None = None
        if info is not None and info.latest_checkpoint is not None:
            experiment_id, operations = self.load_state(info.latest_checkpoint)
            _logger().info(f"going on with experiment {experiment_id} from checkpoint {info.latest_checkpoint}")
        else:
            key = _creation_key(info.task_id if info is not None else None, text)
            experiment_id = _experiment.create_experiment(session, text, model_dir, key)
            self.state.experiment_id = experiment_id
            self.save_state(experiment_id, [])
            _logger().info(f"searching in experiment {experiment_id}")
        self.run_experiment(experiment_id, session, operations)
        return experiment_id

    def load_state(self, storage_id: str) -> tuple[int, list[Operation]]:
        """Load what `save_state` saved as this checkpoint, into `state` and into the method.

        Returns:
            The experiment's id, and the operations that answer `state.last_event_id`.

        Raises:
            ValueError: The checkpoint is not one of a search.
        """
        with self.context.checkpoint.restore_path(storage_id) as path:
            self.state, experiment_id = self.search_method.load(path)
            operations = _saved.read_operations(path)
        self._checkpoints = [storage_id]
        return experiment_id, operations

    def save_state(self, experiment_id: int, operations: list[Operation]) -> None:
        """Save state and operations as a checkpoint; its `steps_completed` is the last event's id."""
        metadata = {"steps_completed": self.state.last_event_id}
        with self.context.checkpoint.store_path(metadata) as (path, storage_id):
            self.search_method.save(self.state, path, experiment_id=experiment_id)
            _saved.write_operations(path, operations)
        self._checkpoints.append(storage_id)
        while self._deletes and len(self._checkpoints) > _KEPT_CHECKPOINTS:
            try:
                self.context.checkpoint.delete(self._checkpoints.pop(0))
            except (errors.CheckpointException, errors.APIException, OSError) as e:
                self._deletes = False
                _logger().warning(f"superseded checkpoints are left to the cluster, as one could not be deleted: {e}")

    def _may_leave(self) -> None:
        if self.context.preempt.should_preempt():
            _logger().info("this trial makes room; the search goes on when it is back")
            raise SystemExit(0)


def _creation_key(task_id: str | None, text: str) -> str:
    """The same in each run of a trial, so that one that died before its first checkpoint finds its experiment."""
    import hashlib

    from determined.common.experimental._wire import new_key

    if task_id is None:
        return f"search-{new_key()}"
    return f"search-of-{hashlib.sha256(f'{task_id} {text}'.encode()).hexdigest()[:32]}"


def _logger() -> Any:
    import logging

    return logging.getLogger("determined.searcher")
