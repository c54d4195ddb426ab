"""A custom search whose method runs in the user's own process."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from determined.searcher import _experiment, _saved
from determined.searcher._search_method import STATE_FILE
from determined.searcher._search_runner import SearchRunner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determined.searcher._operations import Operation
    from determined.searcher._search_method import SearchMethod

_EXPERIMENT_FILE = "experiment_id.txt"
_KEY_FILE = "creation_key.txt"
_LOCK_FILE = ".lock"
_CURRENT_FILE = "event_id"


class LocalSearchRunner(SearchRunner):
    """Runs a search from this machine, and goes on with one that was interrupted.

    `searcher_dir` belongs to one search: started again there, the runner goes on with the same experiment, after a
    crash at whatever moment. For a new search, give a new one.

    Args:
        search_method: The method, as for a start; its state is loaded when there is one.
        searcher_dir: Where to keep `experiment_id.txt` and `exp_<id>/`; by default the working directory. It is
            made if needed.
    """

    def __init__(self, search_method: SearchMethod, searcher_dir: Path | None = None) -> None:
        super().__init__(search_method)
        self.searcher_dir = Path(searcher_dir) if searcher_dir is not None else Path.cwd()

    @property
    def state_path(self) -> Path | None:
        """The folder of this search's state, `exp_<id>` in `searcher_dir`; None before there is an experiment."""
        known = self.state.experiment_id
        return None if known is None else self._folder(known)

    def run(self, exp_config: dict[str, Any] | str, model_dir: str | None = None) -> int:
        """Create the experiment, or find it, and run its search to the end.

        Args:
            exp_config: The experiment's configuration, with the searcher `custom`: a YAML file or a dictionary.
            model_dir: The directory with the training code; by default the working directory.

        Returns:
            The experiment's id. See `state.experiment_completed` for how it ended.

        Raises:
            ValueError: The configuration is not one of a custom search, or `searcher_dir` is damaged.
            RuntimeError: Another process runs the search of `searcher_dir`.
            APIException: The master refuses the experiment or the operations, or can't be reached to create it.
            Exception: What the method raised. The experiment was ordered to end as ERROR.
        """
        text = _experiment.config_text(exp_config)
        self.searcher_dir.mkdir(parents=True, exist_ok=True)
        with _saved.only_one(self.searcher_dir / _LOCK_FILE):
            session = _experiment.session_of_client()
            experiment_id = self._saved_experiment_id()
            if experiment_id is None:
                experiment_id = _experiment.create_experiment(session, text, model_dir, self._key())
                _saved.write_durably(self.searcher_dir / _EXPERIMENT_FILE, str(experiment_id))
            # Had it been left, a user who removes experiment_id.txt would get the old experiment again.
            (self.searcher_dir / _KEY_FILE).unlink(missing_ok=True)
            operations: list[Operation] | None = None
            if (self._folder(experiment_id) / _CURRENT_FILE).exists():
                _, operations = self.load_state(experiment_id)
                _logger().warning(f"going on with experiment {experiment_id} of {self.searcher_dir}")
            else:
                self.state.experiment_id = experiment_id
                self.save_state(experiment_id, [])
                _logger().info(f"searching in experiment {experiment_id}")
            self.run_experiment(experiment_id, session, operations)
            self._save_end(experiment_id)
        return experiment_id

    def load_state(self, experiment_id: int) -> tuple[int, list[Operation]]:
        """Load what `save_state` saved last, into `state` and into the method.

        Returns:
            The experiment's id, and the operations that answer `state.last_event_id`.

        Raises:
            ValueError: The files are damaged, or of an earlier generation.
        """
        folder = self._current(experiment_id)
        self.state, saved_id = self.search_method.load(folder)
        return saved_id, _saved.read_operations(folder)

    def save_state(self, experiment_id: int, operations: list[Operation]) -> None:
        """Save state and operations as `exp_<id>/event_<n>`; `exp_<id>/event_id` says which one holds."""
        current = self._folder(experiment_id) / _CURRENT_FILE
        folder = self._folder(experiment_id) / f"event_{self.state.last_event_id}"
        if folder.exists():
            shutil.rmtree(folder)  # begun by a runner that died
        folder.mkdir(parents=True)
        self.search_method.save(self.state, folder, experiment_id=experiment_id)
        _saved.write_operations(folder, operations)
        _saved.sync_folder(folder)
        before = current.read_text(encoding="utf-8").strip() if current.exists() else None
        _saved.write_durably(current, str(self.state.last_event_id))
        if before is not None:
            shutil.rmtree(self._folder(experiment_id) / f"event_{before}", ignore_errors=True)

    def _save_end(self, experiment_id: int) -> None:
        values = {**self.state.to_dict(), "experimentId": experiment_id}
        _saved.write_durably(self._current(experiment_id) / STATE_FILE, json.dumps(values))

    def _saved_experiment_id(self) -> int | None:
        path = self.searcher_dir / _EXPERIMENT_FILE
        try:
            return int(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as e:
            raise ValueError(f"{path} does not hold the id of an experiment: {e}") from e

    def _key(self) -> str:
        """The key to create the experiment with, the same in each attempt."""
        from determined.common.experimental._wire import new_key

        path = self.searcher_dir / _KEY_FILE
        if path.exists():
            return path.read_text(encoding="utf-8").strip()
        key = f"search-{new_key()}"
        _saved.write_durably(path, key)
        return key

    def _folder(self, experiment_id: int) -> Path:
        return self.searcher_dir / f"exp_{experiment_id}"

    def _current(self, experiment_id: int) -> Path:
        folder = self._folder(experiment_id)
        name = (folder / _CURRENT_FILE).read_text(encoding="utf-8").strip()
        if not name.isdigit() or not os.path.isdir(folder / f"event_{name}"):
            raise ValueError(f"{folder / _CURRENT_FILE} holds {name!r}, and there is no folder event_{name} beside it")
        return folder / f"event_{name}"


def _logger() -> Any:
    import logging

    return logging.getLogger("determined.searcher")
