"""The record of a search: from the cluster by the experiment's number, or from an exported file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cli import render, session

if TYPE_CHECKING:
    from workflows.searchers import Search
    from workflows.searchers.replay import Export


def load(target: str) -> Export:
    """Read the record of an experiment, or of the file of that name.

    Raises: ValueError if it is neither, or no record; NotFoundException.
    """
    from workflows.searchers.replay import ExportError, parse_lines

    # Not splitlines(): a name may hold one of the further characters that end a line there.
    try:
        if target.isdecimal():
            return parse_lines(_text_of(int(target)).split("\n"))
        path = Path(target)
        if path.is_file():
            return parse_lines(path.read_text(encoding="utf-8").split("\n"))
    except ExportError as error:
        raise ValueError(f"{target} is no record of a search: {error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{target} is no record of a search: expected UTF-8 text") from None
    except OSError as error:
        raise ValueError(f"{target} can't be read: {error.strerror}") from None
    raise ValueError(
        f"{target!r}: expected an experiment's number, or a file that `det experiment replay --export` wrote"
    )


def new_search(export: Export) -> Search:
    """The search of a record before its first event.

    Raises: ValueError if its configuration is none of a search.
    """
    from workflows.searchers import SearchError
    from workflows.searchers.replay import ExportError

    try:
        return export.header.new_search()
    except (ExportError, SearchError) as error:
        raise ValueError(f"the record of experiment {export.header.experiment_id} can't be replayed: {error}") from None


def metric(export: Export) -> str:
    """Name of the searcher's metric."""
    return str(render.part(export.header.config, "searcher").get("metric") or "metric")


def names(export: Export) -> dict[str, str]:
    """How to call each trial: by its number."""
    return {request_id: f"trial {trial_id}" for request_id, trial_id in export.header.trials.items()}


def _text_of(experiment_id: int) -> str:
    """The record as the cluster keeps it."""
    return session.get().get(f"/api/v1/experiments/{experiment_id}/search/history").body.decode()
