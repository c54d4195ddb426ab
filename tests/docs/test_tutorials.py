"""The chapters of the tutorial, one after the other as a reader goes, and the notebook, on a cluster of their own."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.pages import blocks, run_page
from tests.kit.embedded import TORCH_PYTHON, Embedded
from tests.kit.servers import REPOSITORY, docker_engine, trial_image

DOCS = REPOSITORY / "docs"
CHAPTERS = ["first-experiment", "search", "pause-and-resume", "sdk", "distributed", "pytorch-loop"]
TOLD = ["coming-from-determined", "coming-from-trainers", "sdk", "organization", "old-cluster"]
PAGES = ["index", *(f"tutorials/{chapter}" for chapter in CHAPTERS), *TOLD]
#: What it trains, with one library after the other, tests/e2e/test_pytorch_example.py trains too.
LONG = "coming-from-trainers"
#: What the reader of the page on the SDK has of their own: here it is the first chapter's configuration.
OWN_FILES = ("my_config.yaml", "small.yaml", "large.yaml")


def shell_of(cluster: Embedded) -> dict[str, str]:
    """The environment of a reader's shell. It names no launcher and no Python for trials: plain processes, `.venv-trial`."""
    return {
        **{name: value for name, value in cluster.environment.items() if name != "UNDETERRED_TRIAL_PYTHON"},
        "PATH": os.pathsep.join([str(REPOSITORY / ".venv" / "bin"), os.environ["PATH"]]),
        "TORCH_PYTHON": str(TORCH_PYTHON),
        "TRIAL_PYTHON": str(REPOSITORY / ".venv-trial" / "bin" / "python"),
    }


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """A reader's folder, and the environment of their shell. The pages start the cluster themselves."""
    cluster = Embedded(tmp_path_factory.mktemp("reader"))
    try:
        yield tmp_path_factory.mktemp("tutorial"), shell_of(cluster)
    finally:
        cluster.run("down")


def test_every_chapter_is_run() -> None:
    assert {path.stem for path in (DOCS / "tutorials").glob("*.md")} == set(CHAPTERS)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.long) if page == LONG else page for page in PAGES]
)
def test_page(page: str, reader: tuple[Path, dict[str, str]]) -> None:
    folder, environment = reader
    for name in OWN_FILES if page == "sdk" else ():
        shutil.copy(folder / "const.yaml", folder / name)
    assert run_page(DOCS / f"{page}.md", folder, environment) >= 1


@pytest.mark.docker
def test_first_chapter_in_docker(tmp_path: Path) -> None:
    """The other launcher, which the reader chose before: `det up` of the page keeps it."""
    with docker_engine():
        trial_image()
        cluster, folder = Embedded(tmp_path / "cluster", launcher="docker"), tmp_path / "tutorial"
        folder.mkdir()
        with cluster.started():
            assert run_page(DOCS / "tutorials" / "first-experiment.md", folder, shell_of(cluster)) >= 1
            assert "run in Docker, in the image undeterred/trial:dev" in cluster.run("status").stdout
        cluster.environment["UNDETERRED_TRIAL_IMAGE"] = "undeterred/none:1"
        try:
            said = cluster.run("up").stdout
            assert "which this host does not have; to do: `" in said
            assert "build-local.sh -t undeterred/none:1 -e " in said
            assert re.search(
                r"problem +trials .* lacks the image undeterred/none:1; to do: ", cluster.det("doctor").stdout
            )
        finally:
            cluster.run("down")


def test_readme(tmp_path: Path) -> None:
    """What it shows to do after its two commands, which CI and the tests of the demo run."""
    shown = [block for block in blocks(REPOSITORY / "README.md") if block.kind == "sh" and "make " not in block.text]
    page = tmp_path / "readme.md"
    page.write_text("\n".join(f"```sh\n{block.text}```\n" for block in shown))
    cluster, folder = Embedded(tmp_path / "cluster"), tmp_path / "clone"
    shutil.copytree(REPOSITORY / "examples" / "digits", folder / "examples" / "digits")
    (folder / ".venv").symlink_to(REPOSITORY / ".venv")
    del cluster.environment["UNDETERRED_TRIAL_PYTHON"]
    with cluster.started():
        digits = folder / "examples" / "digits"
        cluster.det("experiment", "create", str(digits / "adaptive.yaml"), str(digits), "--paused")
        assert run_page(page, folder, shell_of(cluster)) == len(shown) > 0


def test_notebook(reader: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    folder = shutil.copytree(REPOSITORY / "examples" / "digits", tmp_path / "digits")
    notebook = nbformat.read(folder / "search.ipynb", as_version=4)
    runner = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": folder}})
    runner.execute(env=reader[1])
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    tables = [output.data["text/html"] for output in shown if "text/html" in output.get("data", {})]
    assert "<th>state</th>" in tables[0]
    assert any("image/png" in output.get("data", {}) for output in shown)
