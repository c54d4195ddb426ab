"""A search of one's own with the published 0.21: `python custom_search.py <config.json> <model folder> <folder>`."""

import json
import pathlib
import sys
import uuid

from determined import searcher


class TwoThenLonger(searcher.SearchMethod):
    """Two trials of two steps each; the better one goes on to four."""

    def __init__(self):
        super().__init__()
        self.metrics = {}
        self.closed = 0

    def initial_operations(self, _):
        operations = []
        for _ in range(2):
            create = searcher.Create(request_id=uuid.uuid4(), hparams={"sleep": 0}, checkpoint=None)
            operations += [create, searcher.ValidateAfter(request_id=create.request_id, length=2)]
        return operations

    def on_trial_created(self, _, request_id):
        return []

    def on_validation_completed(self, _, request_id, metric, train_length):
        if train_length == 4:
            return [searcher.Close(request_id=request_id)]
        self.metrics[request_id] = metric
        if len(self.metrics) < 2:
            return []
        first, second = self.metrics
        return [searcher.ValidateAfter(request_id=first, length=4), searcher.Close(request_id=second)]

    def on_trial_closed(self, _, request_id):
        self.closed += 1
        return [searcher.Shutdown()] if self.closed == 2 else []

    def on_trial_exited_early(self, _, request_id, exited_reason):
        return [searcher.Shutdown(failure=True)]

    def progress(self, _):
        return self.closed / 2

    def save_method_state(self, path):
        (path / "state").write_text(json.dumps([[str(key) for key in self.metrics], self.closed]))

    def load_method_state(self, path):
        raise NotImplementedError


config, model_folder, folder = sys.argv[1:]
runner = searcher.LocalSearchRunner(TwoThenLonger(), searcher_dir=pathlib.Path(folder))
print(runner.run(json.loads(pathlib.Path(config).read_text()), model_dir=model_folder))
