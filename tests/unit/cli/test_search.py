"""`det preview-search`, `det experiment plan|rungs|why|replay|fork|edit|plot` and `det trial why`, on real histories."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Cluster, Det
from workflows.config import ClusterDefaults, parse_experiment_config
from workflows.searchers import (
    Amended,
    Close,
    Create,
    Decision,
    Event,
    ExitReason,
    OperationCompleted,
    Search,
    Started,
    Stop,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
    ValidationReported,
)
from workflows.searchers.replay import Header, derive, dump_lines

HISTORY = "GET /api/v1/experiments/7/search/history"
WHY = "GET /api/v1/undeterred/experiments/7/why"
FIRST_TRIAL = 101
ASHA: dict[str, Any] = {
    "name": "adaptive_asha", "metric": "loss", "max_length": {"batches": 16}, "max_trials": 6, "max_rungs": 2
}  # fmt: skip
SPACE: dict[str, Any] = {"lr": {"type": "double", "minval": 0, "maxval": 1}}
STORAGE = ClusterDefaults(checkpoint_storage={"type": "directory", "container_path": "/c"})

Metric = Callable[[int, int], Any]
"""Of a trial's place, from 0, and the length it trained to."""


class Story:
    """A search that was run, and its record; trials are numbered from FIRST_TRIAL in order of creation."""

    def __init__(self, searcher: dict[str, Any] = ASHA, space: dict[str, Any] = SPACE) -> None:
        wanted = {"name": "t", "entrypoint": "true", "hyperparameters": space, "searcher": searcher}
        self.config = parse_experiment_config(wanted, cluster=STORAGE, seed=1)
        self.search = Search.new(self.config)
        self.ids: list[str] = []
        self.decisions: list[Decision] = []
        self._begun: list[tuple[str, int]] = []
        self._closed: set[str] = set()

    def send(self, event: Event) -> None:
        decision = derive(self.search, Decision(number=1, event=event))
        self.decisions.append(decision)
        for action in decision.actions:
            if isinstance(action, Create):
                self.ids.append(action.request_id)
            elif isinstance(action, TrainTo):
                self._begun.append((action.request_id, action.length))
            elif isinstance(action, Close | Stop):
                self._closed.add(action.request_id)

    def run(self, metric: Metric = lambda place, length: place + 1 / length) -> Story:
        """To the end, in the generation of operations."""
        self.send(Started())
        while self._begun:
            request_id, length = self._begun.pop(0)
            self.send(
                OperationCompleted(request_id=request_id, length=length, metric=metric(self._at(request_id), length))
            )
            self._close_done()
        return self

    def _close_done(self) -> None:
        for request_id in [r for r in self.ids if r in self._closed and all(r != begun for begun, _ in self._begun)]:
            self._closed.discard(request_id)
            self.send(TrialClosed(request_id=request_id))

    def _at(self, request_id: str) -> int:
        return self.ids.index(request_id)

    def text(self, state: str = "COMPLETED") -> str:
        header = Header(
            experiment_id=7,
            name="t",
            config=self.config.model_dump(mode="json"),
            state=state,
            trials={request_id: FIRST_TRIAL + place for place, request_id in enumerate(self.ids)},
        )
        return "".join(f"{line}\n" for line in dump_lines(header, self.decisions))

    def serve(self, cluster: Cluster, state: str = "COMPLETED") -> Story:
        cluster.routes[HISTORY] = self.text(state).encode()
        cluster.routes[WHY] = {"sentences": ["experiment 7 is so"], "facts": {"experimentId": 7}}
        return self


def cells(out: str) -> list[list[str]]:
    """The rows of a printed table, without the line below the headers."""
    return [[cell.strip() for cell in line.split("|")] for line in out.splitlines() if "|" in line]


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """ASHA, without storage and without an entrypoint."""
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({"hyperparameters": SPACE, "searcher": ASHA}))
    return path


def written(folder: Path, searcher: dict[str, Any], **more: Any) -> Path:
    path = folder / "other.yaml"
    path.write_text(json.dumps({"hyperparameters": SPACE, "searcher": {"metric": "loss", **searcher}, **more}))
    return path


class TestPlan:
    def test_shows_trials_brackets_and_all_of_it_without_a_cluster(self, det: Det, config_file: Path) -> None:
        result = det("preview-search", config_file)
        assert result.code == 0, result.err
        assert result.out == det("e", "plan", config_file).out
        rows = cells(result.out)
        assert rows[:3] == [["Trials", "Training"], ["3", "4 batches"], ["3", "16 batches"]]
        assert "bracket 0: 4 trials, 4 at a time, rungs 4 -> 16\n" in result.out
        assert "bracket 1: 2 trials, 2 at a time, rungs 16\n" in result.out
        assert rows[3:] == [["Search", "Trials", "Total Work"], ["as it is", "6", "60 batches"]]

    def test_compares_and_prices(self, det: Det, config_file: Path) -> None:
        options = [
            "--compare",
            "mode=aggressive",
            "--compare",
            "max_trials=12,max_length={epochs: 8},bracket_rungs=[1,2]",
        ]
        result = det("e", "plan", config_file, *options, "--unit-seconds", "60", "--cost", "2.5")
        assert result.code == 0, result.err
        assert "\nmode=aggressive:\n" in result.out
        first, second, third = cells(result.out)[-3:]
        assert first == ["as it is", "6", "60 batches", "100%", "1", "2.50"]
        assert second == ["mode=aggressive", "6", "36 batches", "60%", "0.6", "1.50"]
        assert third[1:4] == ["12", "60 epochs", "N/A"], "batches and epochs can't be compared"
        told = json.loads(
            det("e", "plan", config_file, *options, "--unit-seconds", "60", "--cost", "2.5", "--json").out
        )
        assert [one["total"] for one in told] == [60, 36, 60]
        assert told[0]["trials"] == [{"count": 3, "length": 4}, {"count": 3, "length": 16}]
        assert told[0]["brackets"][0] == {"rungs": [4, 16], "trials": 4, "concurrency": 8}
        assert (told[0]["slotHours"], told[0]["cost"]) == (1, 2.5)

    def test_says_whether_the_search_fits_into_its_budget(self, det: Det, tmp_path: Path) -> None:
        searcher = {"name": "random", "max_trials": 6, "max_length": 3}
        budget = {"trials": 4, "slot_hours": 12, "price": 50, "wall_time": "3h"}
        path = written(tmp_path, searcher, budget=budget)
        assert det("e", "plan", path, "--unit-seconds", "3600", "--cost", "2.5").out.splitlines()[-4:] == [
            "its budget has 4 trials: the search starts 6, so it is paused",
            "its budget has 12 slot-hours: the search takes 18, so it is paused",
            "its budget has 50 at the prices of its pools: the search costs 45",
            "its budget has 3h of wall time, which depends on the slots that it gets",
        ]
        told = json.loads(det("e", "plan", path, "--json").out)
        assert told[0]["budget"] == budget | {"soft": 0.8}

    def test_slots_count_each(self, det: Det, tmp_path: Path) -> None:
        searcher = {"name": "random", "max_trials": 2, "max_length": 3}
        for slots, hours in ((4, 24), (0, 0)):
            path = written(tmp_path, searcher, resources={"slots_per_trial": slots})
            told = json.loads(det("e", "plan", path, "--unit-seconds", "3600", "--json").out)
            assert told[0]["slotHours"] == hours

    @pytest.mark.parametrize(
        ("searcher", "rows"),
        [
            ({"name": "single", "max_length": {"epochs": 3}}, [["1", "3 epochs"]]),
            ({"name": "random", "max_trials": 4}, [["4", "as long as its code trains"]]),
            ({"name": "optuna", "max_trials": 4, "max_length": 2}, [["4", "2 units"]]),
            (
                {"name": "pbt", "population_size": 4, "num_rounds": 3, "length_per_round": 2},
                [["3", "2 units"], ["3", "6 units"]],
            ),
            (
                {"name": "async_halving", "max_trials": 4, "num_rungs": 2, "max_time": 8, "time_metric": "epoch"},
                [["3", "2 epoch"], ["1", "8 epoch"]],
            ),
        ],
        ids=["single", "random", "optuna", "pbt", "async_halving"],
    )
    def test_other_methods(self, det: Det, tmp_path: Path, searcher: dict[str, Any], rows: list[list[str]]) -> None:
        result = det("e", "plan", written(tmp_path, searcher))
        assert result.code == 0, result.err
        assert cells(result.out)[1 : 1 + len(rows)] == rows

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--config", "searcher={name: custom, metric: a}"], "what a custom search will do cannot be known"),
            (["--config", "searcher.name=grid"], "<config>.hyperparameters.lr: grid search is in use but count"),
            (["--config", "searcher.max_trials=0"], "<config>.searcher.max_trials"),
            (["--compare", "mode=fast"], "--compare 'mode=fast': "),
            (["--compare", "mode=fast"], '<config>.searcher.mode: value must be one of <nil>, "aggressive"'),
            (["--compare", "mode"], "--compare 'mode': expected key=value of the searcher"),
            (["--compare", "mode=standard,"], "but found ''"),
            (["--cost", "3"], "--cost needs --unit-seconds"),
            (["--unit-seconds", "inf"], "--unit-seconds: inf: expected a finite number"),
        ],
    )
    def test_refuses_in_one_sentence(self, det: Det, config_file: Path, words: list[str], said: str) -> None:
        result = det("e", "plan", config_file, *words)
        assert (result.code, result.out) == (1, "")
        assert said in result.err
        assert "This is a bug" not in result.err

    def test_missing_file(self, det: Det, tmp_path: Path) -> None:
        result = det("e", "plan", tmp_path / "none.yaml")
        assert result.code == 1
        assert "none.yaml' can't be read: No such file" in result.err


class TestRungs:
    def test_who_stands_where(self, cluster: Cluster, det: Det) -> None:
        Story().run().serve(cluster)
        rows = cells(det("e", "rungs", "7").out)
        assert rows[0] == ["Bracket", "Rung", "Length", "Results", "Went On", "Threshold", "Best", "loss"]
        assert rows[1:] == [
            ["0", "0", "4", "4", "1", "0.25", "trial 101", "0.25"],
            ["0", "1", "16", "1", "N/A", "N/A", "trial 101", "0.0625"],
            ["1", "0", "16", "2", "N/A", "N/A", "trial 105", "4.0625"],
        ]
        rows = cells(det("e", "rungs", "7", "--all").out)
        assert rows[0] == ["Bracket", "Rung", "Length", "Place", "Trial", "loss", "Outcome"]
        assert rows[1] == ["0", "0", "4", "1", "trial 101", "0.25", "promoted"]
        assert [row[-1] for row in rows[2:]] == ["stopped"] * 3 + ["finished"] * 3

    def test_json_has_a_word_for_nan(self, cluster: Cluster, det: Det) -> None:
        Story().run(lambda place, length: math.nan if place == 0 else place).serve(cluster)
        [first, *_] = json.loads(det("e", "rungs", "7", "--json").out, parse_constant=pytest.fail)
        assert (first["bracket"], first["rung"], first["length"], first["threshold"]) == (0, 0, 4, 1)
        assert [entry["trialId"] for entry in first["entries"]] == [102, 103, 104, 101]
        assert first["entries"][0] | {"requestId": ""} == {
            "trialId": 102, "requestId": "", "metric": 1, "wentOn": True, "outcome": "promoted"
        }  # fmt: skip
        assert first["entries"][3]["metric"] == "NaN"
        assert cells(det("e", "rungs", "7", "-a").out)[4][5] == "NaN"

    def test_stopping_in_the_events_generation(self, cluster: Cluster, det: Det) -> None:
        story = Story({"name": "async_halving", "metric": "loss", "max_trials": 2, "num_rungs": 2, "max_time": 8,
                       "time_metric": "epoch", "max_concurrent_trials": 2})  # fmt: skip
        story.send(Started())
        for place in (0, 1):
            metrics = {"loss": place, "epoch": 2}
            story.send(ValidationReported(request_id=story.ids[place], metrics=metrics))
        story.serve(cluster, "ACTIVE")
        rows = cells(det("e", "rungs", "7", "-a").out)[1:]
        assert rows == [
            ["0", "0", "2", "1", "trial 101", "0", "goes on"],
            ["0", "0", "2", "2", "trial 102", "1", "stopped"],
        ]

    def test_nothing_decided_yet(self, cluster: Cluster, det: Det) -> None:
        Story().serve(cluster, "ACTIVE")
        rows = cells(det("e", "rungs", "7").out)
        assert [row[3:] for row in rows[1:]] == [["0", "0", "N/A", "N/A", "N/A"]] * 3
        assert det("e", "rungs", "7", "-a").code == 0

    @pytest.mark.parametrize(
        ("searcher", "said"),
        [
            (
                {"name": "random", "metric": "a", "max_trials": 2, "max_length": 1},
                "'random' of experiment 7 has no rungs",
            ),
            (
                {"name": "pbt", "metric": "a", "population_size": 2, "num_rounds": 2, "length_per_round": 1},
                "'pbt' of experiment 7 has no round that is over yet",
            ),
        ],
    )
    def test_searchers_without_rungs(self, cluster: Cluster, det: Det, searcher: dict[str, Any], said: str) -> None:
        Story(searcher).serve(cluster)
        result = det("e", "rungs", "7")
        assert (result.code, result.out) == (1, "")
        assert said in result.err


class TestWhy:
    def test_search(self, cluster: Cluster, det: Det) -> None:
        story = Story().run().serve(cluster)
        first, *lines = det("e", "why", "7").out.splitlines()
        assert first == "experiment 7 is so"
        assert lines[0] == f"the search is over since decision {len(story.decisions)}: completed"
        assert lines[1].startswith(f"decided last (decision {len(story.decisions)}): trial 101 ended")
        assert lines[2].startswith("bracket 0, rung 0 (length 4): 4 results, 1 promoted, 3 stopped")
        told = json.loads(det("e", "why", "7", "--json").out)
        assert told == {"sentences": [first], "facts": {"experimentId": 7}, "search": lines}

    def test_nothing_decided_yet(self, cluster: Cluster, det: Det) -> None:
        Story().serve(cluster, "ACTIVE")
        assert det("e", "why", "7").out == "experiment 7 is so\nnothing has been decided yet\n"

    def test_state_that_the_decisions_do_not_tell(self, det: Det, tmp_path: Path) -> None:
        story, path = Story(), tmp_path / "search.jsonl"
        story.send(Started())
        path.write_text(story.text("ACTIVE"))
        assert det("e", "why", path).out.startswith("waits for the result of trial 101 at 4, ")
        path.write_text(story.text("PAUSED"))
        assert det("e", "why", path).out.startswith("experiment 7 is PAUSED\nwaits for the result of trial 101 at 4, ")
        path.write_text(story.text("CANCELED"))
        lines = det("e", "why", path).out.splitlines()
        assert lines[0] == "experiment 7 is CANCELED"
        assert not any(line.startswith("waits for") for line in lines), "nothing comes any more"
        told = json.loads(det("e", "why", path, "--json").out)
        assert told == {"sentences": [], "facts": None, "search": lines}

    def test_error_of_the_search(self, cluster: Cluster, det: Det) -> None:
        story = Story()
        story.send(Started())
        story.send(OperationCompleted(request_id=story.ids[0], length=4, metric="high"))
        story.serve(cluster, "ERROR")
        lines = det("e", "why", "7").out.splitlines()
        assert lines[0] == "experiment 7 is so"
        assert lines[-1].startswith("decision 2 could not be made: ")
        assert "'loss'" in lines[-1]
        assert "'loss'" in cells(det("e", "replay", "7").out)[-1][-1]

    def test_trial(self, cluster: Cluster, det: Det) -> None:
        Story().run(lambda place, length: math.nan if place == 1 else place).serve(cluster)
        facts = {"trialId": 102, "experimentId": 7}
        cluster.routes["GET /api/v1/undeterred/trials/102/why"] = {"sentences": ["trial 102 waits"], "facts": facts}
        first, *lines = det("t", "why", "102").out.splitlines()
        assert first == "trial 102 waits"
        assert lines[0] == "decision 1: created: the search began, trains to 4"
        assert "with loss NaN: place 2 of 2" in lines[1]
        assert lines[-1].endswith("ended")
        told = json.loads(det("t", "why", "102", "--json").out)
        assert told == {"sentences": [first], "facts": facts, "search": lines}

    def test_trial_that_failed(self, cluster: Cluster, det: Det) -> None:
        story = Story()
        story.send(Started())
        story.send(TrialExitedEarly(request_id=story.ids[0], reason=ExitReason.ERRORED))
        story.serve(cluster, "ACTIVE")
        cluster.routes["GET /api/v1/undeterred/trials/101/why"] = {"sentences": [], "facts": {"experimentId": 7}}
        assert "ended early (errored): counts as the worst" in det("t", "why", "101").out

    def test_trial_that_the_record_does_not_know(self, cluster: Cluster, det: Det) -> None:
        Story().run().serve(cluster)
        cluster.routes["GET /api/v1/undeterred/trials/9/why"] = {"sentences": [], "facts": {"experimentId": 7}}
        result = det("t", "why", "9")
        assert (result.code, result.out) == (1, "")
        assert result.err == "trial 9 is not part of the recorded search of experiment 7.\n"


class TestReplay:
    def test_prints_each_decision(self, cluster: Cluster, det: Det) -> None:
        story = Story().run(lambda place, length: math.nan if place == 1 else place).serve(cluster)
        rows = cells(det("e", "replay", "7").out)
        assert rows[0] == ["Decision", "Event", "Trial", "loss", "Actions"]
        assert len(rows) == 1 + len(story.decisions)
        assert rows[1][1:] == [
            "started", "N/A", "N/A",
            "create trial 101, trial 102, trial 103, trial 104, trial 105, trial 106; "
            "train trial 101, trial 102, trial 103, trial 104 to 4; train trial 105, trial 106 to 16",
        ]  # fmt: skip
        assert rows[2][1:] == ["operation completed", "trial 101", "0", "-"]
        assert rows[3][3] == "NaN"
        assert rows[-1][-1] == "end the search"
        told = json.loads(det("e", "replay", "7", "--json").out, parse_constant=pytest.fail)
        assert told == [json.loads(decision.canonical()) for decision in story.decisions]

    def test_many_trials_are_cut(self, cluster: Cluster, det: Det) -> None:
        story = Story(
            {"name": "random", "metric": "loss", "max_trials": 12, "max_length": 1, "max_concurrent_trials": 0}
        )
        story.send(Started())
        story.serve(cluster)
        assert "create trial 101, trial 102" in det("e", "replay", "7").out
        assert "trial 108 and 4 more; train" in det("e", "replay", "7").out

    def test_verifies_and_exports(self, cluster: Cluster, det: Det, tmp_path: Path) -> None:
        story = Story().run().serve(cluster)
        path = tmp_path / "search.jsonl"
        result = det("e", "replay", "7", "--verify", "--export", path)
        assert result.code == 0
        count = len(story.decisions)
        verified = f"verified {count} decisions: each is what its event leads to, byte for byte\n"
        assert result.out == f"Wrote {count} decisions to {path}\n{verified}"
        assert path.read_text() == story.text()
        cluster.routes.clear()
        cluster.requests.clear()
        assert det("e", "replay", path, "--verify").out == verified
        for words in (["rungs"], ["rungs", "-a"], ["why"], ["replay"]):
            assert det("e", *words, path).code == 0
        assert not cluster.requests, "a file needs no cluster"

    def test_changed_search_replays(self, cluster: Cluster, det: Det) -> None:
        story = Story({"name": "random", "metric": "loss", "max_trials": 1, "max_length": 2})
        story.send(Started())
        story.send(Amended(max_trials=2))
        story.serve(cluster, "ACTIVE")
        assert det("e", "replay", "7", "--verify").code == 0
        assert "the search was edited (max_trials 2)" in det("e", "why", "7").out
        assert cells(det("e", "replay", "7").out)[-1][1] == "amended (max_trials 2)"

    def test_tampered_decision_is_shown_beside_what_it_should_be(self, det: Det, tmp_path: Path) -> None:
        path = tmp_path / "search.jsonl"
        path.write_text(
            Story().run().text().replace('"kind":"train_to"', '"kind":"close"', 1).replace(',"length":4', "", 1)
        )
        result = det("e", "replay", path, "--verify")
        assert result.code == 1
        first, recorded, derived = result.out.splitlines()
        assert first == "decision 1 differs:"
        assert recorded.startswith('recorded: {"number":1,')
        assert derived.startswith('derived:  {"number":1,')
        assert (recorded.count('"close"'), derived.count('"close"')) == (1, 0)

    def test_tampered_event_of_an_unknown_trial(self, det: Det, tmp_path: Path) -> None:
        story = Story().run()
        lines = story.text().splitlines(keepends=True)
        lines[2] = lines[2].replace(story.ids[0], "somebody")
        path = tmp_path / "search.jsonl"
        path.write_text("".join(lines))
        result = det("e", "replay", path, "--verify")
        assert result.code == 1
        assert "no trial with the request id 'somebody'" in result.out

    def test_cut_record(self, det: Det, tmp_path: Path) -> None:
        lines = Story().run().text().splitlines(keepends=True)
        path = tmp_path / "search.jsonl"
        path.write_text("".join(lines[:-2]))
        result = det("e", "replay", path, "--verify")
        assert result.code == 1
        assert "before the search was over: it is not complete" in result.out
        path.write_text("".join([*lines[:3], *lines[4:]]))
        result = det("e", "replay", path, "--verify")
        assert result.code == 1
        assert "line 4: expected decision 3, but it is decision 4" in result.err

    def test_names_with_odd_line_ends(self, cluster: Cluster, det: Det) -> None:
        space = {"lr": {"type": "categorical", "vals": ["a\u2028b", "c\x85d"]}}
        Story({"name": "random", "metric": "loss", "max_trials": 2, "max_length": 1}, space).run().serve(cluster)
        assert det("e", "replay", "7", "--verify").code == 0

    def test_nothing_decided_yet(self, cluster: Cluster, det: Det) -> None:
        Story().serve(cluster, "ACTIVE")
        assert det("e", "replay", "7").out == "nothing has been decided yet\n"
        assert det("e", "replay", "7", "--json").out == "[]\n"
        assert det("e", "replay", "7", "--verify").code == 0

    def test_unwritable_export(self, cluster: Cluster, det: Det, tmp_path: Path) -> None:
        Story().run().serve(cluster)
        for path, reason in ((tmp_path / "none" / "x", "No such file or directory"), (tmp_path, "Is a directory")):
            result = det("e", "replay", "7", "--export", path)
            assert result.code == 1
            assert result.err == f"--export: '{path}' can't be written: {reason}\n"

    def test_json_is_for_printing_only(self, det: Det) -> None:
        result = det("e", "replay", "7", "--json", "--verify")
        assert result.code == 1
        assert "--csv print the decisions" in result.err

    @pytest.mark.parametrize("command", ["rungs", "why", "replay"])
    def test_targets_that_are_none(self, cluster: Cluster, det: Det, tmp_path: Path, command: str) -> None:
        cluster.routes[HISTORY] = 404, {"message": "experiment 7 not found"}
        result = det("e", command, "7")
        assert (result.code, result.err) == (4, "experiment 7 not found\n")
        (tmp_path / "text").write_text("hello")
        (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
        (tmp_path / "config").write_text(Story().run().text().replace('"adaptive_asha"', '"nonsense"', 1))
        (tmp_path / "version").write_text('{"format": "undeterred-search", "version": 2}')
        for name, said in (
            ("absent", "expected an experiment's number, or a file that"),
            (".", "expected an experiment's number, or a file that"),
            ("text", "line 1: expected the header of an exported search"),
            ("bytes", "expected UTF-8 text"),
            ("version", "expected version 1 of the format, but it is version 2"),
        ):
            result = det("e", command, tmp_path / name)
            assert (result.code, result.out) == (1, ""), name
            assert said in result.err
        if command == "rungs":
            result = det("e", command, tmp_path / "config")
            assert result.code == 1
            assert "the record of experiment 7 can't be replayed: " in result.err


class TestFork:
    ROUTE = "POST /api/v1/experiments/7/fork"

    @pytest.fixture(autouse=True)
    def routes(self, cluster: Cluster) -> None:
        cluster.routes[self.ROUTE] = {"experiment": {"id": 8}, "warnings": ["beware"]}
        original = "# mine\nname: a\nsearcher: {name: random, max_trials: 3, metric: loss}\n"
        cluster.routes["GET /api/v1/experiments/7"] = {"experiment": {"id": 7, "originalConfig": original}}

    def test_sends_what_is_different(self, cluster: Cluster, det: Det, tmp_path: Path) -> None:
        result = det("e", "fork", "7")
        assert (result.code, result.out) == (0, "Created experiment 8\n")
        assert "warning: beware" in result.err
        assert cluster.body_of(self.ROUTE) == {"activate": True}
        assert det("e", "fork", "7", "--at", "5", "--paused", "--config", "searcher.max_trials=9").code == 0
        body = cluster.body_of(self.ROUTE)
        assert (body["at"], body["activate"]) == (5, False)
        assert "# mine" in body["config"]
        assert "max_trials: 9" in body["config"]
        (tmp_path / "c.yaml").write_text("name: b\n")
        assert det("e", "fork", "7", "--config-file", tmp_path / "c.yaml").code == 0
        assert cluster.body_of(self.ROUTE)["config"] == "name: b\n"

    @pytest.mark.parametrize(
        ("words", "code", "said"),
        [
            (["--config", "max_trials"], 1, "--config 'max_trials': expected key.sub=value"),
            (["--config-file", "absent.yaml"], 1, "'absent.yaml' can't be read"),
            (["--at", "0"], 2, "--at"),
        ],
    )
    def test_refuses(self, cluster: Cluster, det: Det, words: list[str], code: int, said: str) -> None:
        result = det("e", "fork", "7", *words)
        assert (result.code, result.out) == (code, "")
        assert said in result.err
        assert not any(route == self.ROUTE for route, _, _ in cluster.requests)

    def test_tells_what_the_cluster_refuses(self, cluster: Cluster, det: Det) -> None:
        cluster.routes[self.ROUTE] = 400, {"message": "at: 99: expected the number of a decision"}
        result = det("e", "fork", "7", "--at", "99")
        assert (result.code, result.err) == (1, "at: 99: expected the number of a decision\n")


class TestEdit:
    ROUTE = "POST /api/v1/experiments/7/search/amend"

    @pytest.fixture(autouse=True)
    def route(self, cluster: Cluster) -> None:
        cluster.routes[self.ROUTE] = {}

    def test_sends_what_is_to_change(self, cluster: Cluster, det: Det, tmp_path: Path) -> None:
        result = det("e", "edit", "7", "--max-trials", "9", "--max-length", "20", "--max-concurrent-trials", "0")
        assert (result.code, result.out) == (0, "Edited experiment 7\n")
        assert cluster.body_of(self.ROUTE) == {"maxTrials": 9, "maxLength": 20, "maxConcurrentTrials": 0}
        space = {"lr": {"type": "log", "base": 10, "minval": 1e-4, "maxval": 0}, "flag": "no"}
        yaml = "lr: {type: log, base: 10, minval: 1e-4, maxval: 0}\nflag: no\n"
        indented = "".join(f"  {line}\n" for line in yaml.splitlines())
        for text in (yaml, f"hyperparameters:\n{indented}", f"searcher: {{}}\nhyperparameters:\n{indented}"):
            (tmp_path / "space.yaml").write_text(text)
            assert det("e", "edit", "7", "--hyperparameters", tmp_path / "space.yaml").code == 0
            assert cluster.body_of(self.ROUTE) == {"hyperparameters": space}, "read as a configuration is: YAML 1.2"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("lr: [1, 2", "space.yaml: "),
            ("lr: 1\nlr: 2\n", "line 2"),
            ("- 1\n", "expected a map of hyperparameters, as in a configuration, but found [1]"),
            ("", "expected a map of hyperparameters"),
        ],
    )
    def test_refuses_files(self, cluster: Cluster, det: Det, tmp_path: Path, text: str, said: str) -> None:
        (tmp_path / "space.yaml").write_text(text)
        result = det("e", "edit", "7", "--hyperparameters", tmp_path / "space.yaml")
        assert (result.code, result.out) == (1, "")
        assert said in result.err
        assert "This is a bug" not in result.err
        assert not any(route == self.ROUTE for route, _, _ in cluster.requests)

    def test_refuses_nothing_and_tells_what_the_cluster_refuses(self, cluster: Cluster, det: Det) -> None:
        assert "nothing to change: give --max-trials" in det("e", "edit", "7").err
        assert det("e", "edit", "7", "--max-trials", "0").code == 2
        cluster.routes[self.ROUTE] = 400, {"message": "experiment 7 is over: its search takes nothing more"}
        result = det("e", "edit", "7", "--max-trials", "9")
        assert (result.code, result.out) == (1, "")
        assert result.err == "experiment 7 is over: its search takes nothing more\n"


class TestPlot:
    @pytest.fixture
    def story(self, cluster: Cluster) -> Story:
        story = Story().run().serve(cluster)
        config = {"searcher": {"metric": "loss", "smaller_is_better": True}}
        cluster.routes["GET /api/v1/experiments/7"] = {"experiment": {"id": 7, "name": "t", "config": config}}
        trials = [
            {"id": 101 + place, "hparams": {"lr": 10.0**-place, "net": {"kind": "ab"[place % 2]}, "seed": 1}}
            for place in range(6)
        ]
        cluster.routes["GET /api/v1/experiments/7/trials"] = {"trials": trials, "pagination": {"total": 6}}
        return story

    def serve_metrics(self, cluster: Cluster, *values: Any) -> None:
        reports = [
            {"trialId": 101 + place % 6, "totalBatches": step, "metrics": {"avg_metrics": {"loss": value}}}
            for place, value in enumerate(values)
            for step in (1, 2)
        ]
        line = json.dumps({"result": {"metrics": reports}}) + "\n"
        cluster.routes["GET /api/v1/trials/metrics/validation_metrics"] = line.encode()

    def test_draws_curves_and_each_hyperparameter_that_varies(
        self, cluster: Cluster, det: Det, story: Story, tmp_path: Path
    ) -> None:
        self.serve_metrics(cluster, 0.5, 0.4, "NaN", None, 0.3)
        path = tmp_path / "search.svg"
        result = det("e", "plot", "7", "-o", path)
        assert (result.code, result.out) == (0, f"{path}\n"), result.err
        assert cluster.query_of("GET /api/v1/trials/metrics/validation_metrics")["trialIds"] == [
            str(number) for number in range(101, 107)
        ]
        text = path.read_text()
        for shown in ("experiment 7: t", "rung 0", "rung 1", "furthest rung", "best loss", "net.kind", "lr"):
            assert f"<!-- {shown} -->" in text, shown
        assert "<!-- seed -->" not in text, "it is the same everywhere"
        assert text.count('<g id="PathCollection') == 2

    def test_without_rungs(self, cluster: Cluster, det: Det, story: Story, tmp_path: Path) -> None:
        Story({"name": "single", "metric": "loss", "max_length": 2}).run().serve(cluster)
        cluster.routes["GET /api/v1/experiments/7/trials"] = {"trials": [{"id": 101, "hparams": {}}]}
        self.serve_metrics(cluster, 0.5)
        assert det("e", "plot", "7", "-o", tmp_path / "one.png").code == 0
        assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")

    def test_refuses_in_one_sentence(
        self, cluster: Cluster, det: Det, story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.serve_metrics(cluster, "NaN", None)
        assert "has reported a finite 'loss' yet: there is nothing to draw" in det("e", "plot", "7").err
        self.serve_metrics(cluster, 0.5)
        result = det("e", "plot", "7", "-o", tmp_path / "none" / "x.png")
        assert (result.code, result.err) == (1, f"{tmp_path}/none/x.png can't be written: No such file or directory\n")
        result = det("e", "plot", "7", "-o", tmp_path / "x.doc")
        assert result.code == 1
        assert "can't be written: Format 'doc' is not supported" in result.err
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        result = det("e", "plot", "7")
        assert (result.code, result.err) == (1, "plots need matplotlib: pip install 'undeterred[plot]'\n")
