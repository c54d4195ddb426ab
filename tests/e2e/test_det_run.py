"""`%det run` on a live cluster: a notebook's cells become an experiment that ends as they would."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.kit.embedded import Embedded
from tests.kit.notebooks import Notebook, started

CELLS = (
    "import determined as det\n%matplotlib inline\nimport beside",
    "info = det.get_cluster_info()\nprint('lr is', info.trial.hparams['lr'], 'and', beside.KNOWN)",
    "%det run --name from-a-notebook --config hyperparameters.lr=0.25",
)


@pytest.fixture
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with Embedded(tmp_path_factory.mktemp("run"), slots=1).started() as cluster:
        yield cluster


def test_a_notebook_becomes_an_experiment_with_its_code(embedded: Embedded) -> None:
    notebook = Notebook(embedded, started(embedded))
    notebook.kernel = notebook.call("POST", "/kernels", json={"name": "python3"})["id"]
    with notebook.connected() as socket:
        folder = notebook.asked(socket, "import os; print(os.getcwd())").strip()
    cells = [
        {"cell_type": "code", "source": text, "metadata": {}, "outputs": [], "execution_count": None} for text in CELLS
    ]
    content = {"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": cells}
    path = f"{folder.lstrip('/')}/train.ipynb"
    notebook.call("PUT", f"/contents/{path}", json={"type": "notebook", "content": content})
    beside = {"type": "file", "format": "text", "content": "KNOWN = 'what lies beside it'\n"}
    notebook.call("PUT", f"/contents/{folder.lstrip('/')}/beside.py", json=beside)
    about = {"path": path, "name": "train.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
    notebook.kernel = notebook.call("POST", "/sessions", json=about)["kernel"]["id"]
    with notebook.connected() as socket:
        printed = notebook.asked(socket, CELLS[-1], "logs -f 1\n")
    assert "Left out, as only a notebook can run it: %matplotlib inline\n" in printed
    assert "Created experiment 1 from train.ipynb" in printed
    waited = embedded.det("experiment", "wait", "1", timeout_s=100)
    logs = embedded.det("experiment", "logs", "1").stdout
    assert waited.returncode == 0, logs
    assert "lr is 0.25 and what lies beside it" in logs
    shown = json.loads(embedded.det("experiment", "describe", "1", "--json").stdout)
    assert "from-a-notebook" in json.dumps(shown)
    assert embedded.rows("SELECT u.username FROM experiments e JOIN users u ON u.id = e.owner_id") == [("admin",)]
