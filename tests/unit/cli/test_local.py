"""`det experiment create --local`: one trial here, without a cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.local import chosen_hparams
from tests.unit.cli.conftest import Cluster, Det
from workflows.config import ClusterDefaults, parse_experiment_config

CONFIG = """
name: local
entrypoint: python3 train.py
hyperparameters:
  size: {type: int, minval: 10, maxval: 20}
  rate: {type: log, base: 10, minval: -4, maxval: -2}
  kind: {type: categorical, vals: [b, a]}
  deep: {dropout: {type: double, minval: 0.0, maxval: 0.5}, fixed: 3}
searcher: {name: random, max_trials: 4, metric: loss, max_length: {batches: 300}}
environment: {environment_variables: [FLAVOUR=sweet]}
"""
TRAIN = """
import json, os, sys
import determined as det
from determined import core

info = det.get_cluster_info()
told = {"hparams": info.trial.hparams, "variable": json.loads(os.environ["DET_HPARAMS"]), "cwd": os.getcwd()}
told |= {"flavour": os.environ["FLAVOUR"], "files": sorted(os.listdir(".")), "lengths": [], "resume": info.latest_checkpoint}
with core.init() as context:
    for op in context.searcher.operations():
        told["lengths"].append(op.length)
        context.train.report_validation_metrics(op.length, {"loss": 1.0})
        with context.checkpoint.store_path({"steps_completed": op.length}) as (path, _):
            (path / "state").write_text("x")
            told["checkpoint"] = str(path)
        op.report_completed(1.0)
    told["preempt"] = context.preempt.should_preempt()
print(json.dumps(told))
sys.exit(info.trial.hparams["size"])
"""
HPARAMS = {"size": 15, "rate": 0.001, "kind": "b", "deep": {"dropout": 0.25, "fixed": 3}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").write_text(TRAIN)
    (tmp_path / "model" / "notes.tmp").write_text("")
    (tmp_path / "model" / ".detignore").write_text("*.tmp\n")
    return tmp_path


def test_the_middle_of_a_range_and_the_first_of_a_list() -> None:
    storage = {"type": "directory", "container_path": "/c"}
    config = parse_experiment_config(CONFIG, cluster=ClusterDefaults(checkpoint_storage=storage), seed=0)
    assert chosen_hparams(config.hyperparameters) == HPARAMS


@pytest.mark.parametrize("option", [(), ("-t",), ("--test",)])
def test_runs_one_trial_of_length_1_in_a_copy(
    cluster: Cluster, folder: Path, capfd: pytest.CaptureFixture[str], option: tuple[str, ...]
) -> None:
    from cli.main import main

    code = main(["e", "create", "--local", *option, str(folder / "config.yaml"), str(folder / "model")])
    out, err = capfd.readouterr()
    told = json.loads(out)
    assert code == 15, "the script's own"
    assert told["hparams"] == told["variable"] == HPARAMS
    assert (told["lengths"], told["preempt"], told["resume"]) == ([1], False, None)
    assert (told["flavour"], told["files"]) == ("sweet", ["train.py"])
    assert not os.path.exists(told["cwd"])
    assert not os.path.exists(told["checkpoint"])
    assert "Running `python3 train.py` here, without a cluster" in err
    assert "size=15, rate=0.001, kind=b" in err
    assert cluster.requests == []


def test_a_wrong_configuration_runs_nothing(det: Det, folder: Path) -> None:
    (folder / "config.yaml").write_text(CONFIG.replace("hyperparameters:", "hyperparametres:"))
    result = det("e", "create", "--local", folder / "config.yaml", folder / "model")
    assert (result.code, result.out) == (1, "")
    assert "nothing was run" in result.err
    assert 'config.yaml:4:1: additionalProperties "hyperparametres" not allowed' in result.err


def test_interrupt_reaches_the_script_and_removes_the_copy(folder: Path) -> None:
    (folder / "model" / "train.py").write_text(
        "import os, time\ntry:\n    print(os.getcwd(), flush=True)\n    time.sleep(60)\nfinally:\n    print('left', flush=True)\n"
    )
    words = [sys.executable, "-m", "cli", "e", "create", "--local", str(folder / "config.yaml"), str(folder / "model")]
    # A background job of a shell ignores SIGINT; a person's does not.
    code = f"import signal, os; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv({words[0]!r}, {words!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    copy = process.stdout.readline().strip()
    assert os.path.isdir(copy)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "left\n")
    assert not os.path.exists(copy)


def test_trial_class_trains_and_validates_one_batch(capfd: pytest.CaptureFixture[str]) -> None:
    from cli.main import main

    example = Path(__file__).parents[3] / "examples" / "digits_trial"
    code = main(["experiment", "create", "--local", "--test", str(example / "const.yaml"), str(example)])
    _, err = capfd.readouterr()
    assert code == 0, err
    assert "training metrics at step 1:" in err
    assert "validation metrics at step 1:" in err
    assert "saved checkpoint" in err
