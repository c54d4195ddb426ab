"""`%det run` in a notebook: the notebook becomes an experiment, with its code and the files beside it.

Notebooks of the cluster have it without being asked. Elsewhere: `%load_ext determined.ipython`, and `det user login`.
"""

from __future__ import annotations

import argparse
import collections
import os
import shlex
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

    from determined.common.api._session import Session

SCRIPT = "notebook.py"
_CREATE_TIMEOUT_S = 300.0
_MOST_REMEMBERED = 1000
_MOST_NAMED = 10
_CHECKPOINTS = ".ipynb_checkpoints"
_UNITS = ("batches", "records", "epochs")
#: What an experiment takes over from the notebook that it comes from, below `environment` and `resources`.
_ENVIRONMENT = ("image", "environment_variables", "force_pull_image", "add_capabilities", "drop_capabilities")
_RESOURCES = ("shm_size", "devices")
_DEFAULT_WORKSPACE = 1


def _say(text: str) -> None:
    print(text)  # noqa: T201  # the output of the cell


def load_ipython_extension(ipython: Any) -> None:
    """Register `%det`; IPython calls it."""
    magic = _Magic(ipython)
    ipython.events.register("pre_run_cell", magic.note)
    ipython.register_magic_function(magic.det, "line", "det")


class _Magic:
    def __init__(self, ipython: Any) -> None:
        self._ipython = ipython
        self._ran: collections.deque[tuple[float, str]] = collections.deque(maxlen=_MOST_REMEMBERED)

    def note(self, info: Any) -> None:
        """Remember when a cell ran: one that is not in the notebook's file is not saved."""
        if info.store_history and not info.silent:
            self._ran.append((time.time(), str(info.raw_cell).strip()))

    def det(self, line: str) -> None:
        """Run `%det run …`."""
        from IPython.core.error import UsageError  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

        from determined import errors
        from determined._notebook_code import NotebookError

        try:
            self._run(_parsed(line))
        except _Helped:
            pass
        except (_Refused, NotebookError, errors.DeterminedException) as e:
            raise UsageError(f"%det run: {e}") from None  # one line in the cell, which has failed

    def _run(self, wanted: argparse.Namespace) -> None:
        from determined import errors
        from determined._notebook_code import read_cells, script_of

        path = wanted.notebook or self._path()
        cells = read_cells(path)
        if not wanted.notebook:
            self._check_saved(path, [text.strip() for _, text in cells])
        origin = os.path.basename(path)
        script, left_out = script_of(cells, origin, self._ipython.transform_cell)
        if left_out:
            more = "; …" if len(left_out) > _MOST_NAMED else ""
            _say(f"Left out, as only a notebook can run it: {'; '.join(left_out[:_MOST_NAMED])}{more}")
        session = _session()
        try:
            body = _body(session, wanted, os.path.dirname(os.path.abspath(path)), origin, script)
            answer = _created(session, body)
        except errors.ForbiddenException as e:
            raise _Refused(f"the cluster refuses it: {e.message}") from None
        finally:
            session.close()
        number = answer["experiment"]["id"]
        _say(f"Created experiment {number} from {origin}, as saved {_ago(os.path.getmtime(path))} ago.")
        _say(f"Follow it in a terminal: det experiment follow {number}; det experiment logs -f {number}")

    def _path(self) -> str:
        """The notebook that this kernel belongs to. Raises: _Refused."""
        of_code: Any = self._ipython.user_ns.get("__vsc_ipynb_file__")
        path = str(of_code or os.environ.get("JPY_SESSION_NAME") or "")
        if not path.endswith(".ipynb") or not os.path.isfile(path):
            raise _Refused("it can't be known which notebook this is: name it, as in `%det run train.ipynb`")
        return path

    def _check_saved(self, path: str, saved: list[str]) -> None:
        """Refuse what has run since the file was written and is not in it. Raises: _Refused."""
        written = os.path.getmtime(path)
        if any(text and at > written and text not in saved for at, text in self._ran):
            raise _Refused(
                f"cells that have run are not in {os.path.basename(path)} yet: save it (Ctrl-S), and try again"
            )


class _Refused(Exception):
    """It can't be done; the text says why."""


class _Helped(Exception):
    """The options were listed."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(f"{message}; `%det run --help` lists the options")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _Helped


def _parsed(line: str) -> argparse.Namespace:
    try:
        words = shlex.split(line)
    except ValueError as e:
        raise _Refused(f"{line!r} can't be read: {e}") from None
    if not words or words[0] != "run":
        raise _Refused(f"expected `%det run`, got {line[:80]!r}; for all else there is `det` in a terminal")
    parser = _Parser(prog="%det run", description="Turn this notebook into an experiment.", allow_abbrev=False)
    parser.add_argument("notebook", nargs="?", default="", help="its file, if it can't be known")
    parser.add_argument("--name", help="of the experiment; else the notebook's")
    parser.add_argument("--slots", type=int, help="of each trial; else as many as the notebook has")
    parser.add_argument("--max-length", help="of the search, as 1000 or 10:epochs (batches, records, epochs)")
    parser.add_argument("--project", help="in the notebook's workspace")
    parser.add_argument("--config", nargs="+", action="append", default=[], metavar="KEY=VALUE", help="key.sub=value")
    return parser.parse_args(words[1:])


# -- the experiment ----------------------------------------------------------------------------------------------------


def _session() -> Session:
    """In a notebook of the cluster: as its owner, also if another user has logged in there with `det`."""
    from determined.common.api._login import login
    from determined.common.api._session import Session
    from determined.common.api._tls import Cert

    env = os.environ
    if _task_id():
        return Session(env["DET_MASTER"], env.get("DET_USER", ""), env["DET_USER_TOKEN"], Cert.from_env())
    return login()


def _task_id() -> str:
    """The notebook's, in the cluster; else empty."""
    env = os.environ
    is_ours = env.get("DET_TASK_TYPE") == "NOTEBOOK" and env.get("DET_MASTER") and env.get("DET_USER_TOKEN")
    return env.get("DET_TASK_ID", "") if is_ours else ""


def _body(session: Session, wanted: argparse.Namespace, folder: str, origin: str, script: str) -> dict[str, Any]:
    """The request. Raises: _Refused, DeterminedException."""
    from determined.common.api._url import api_path
    from determined.common.experimental._config import config_text

    notebook: dict[str, Any] = {}
    if _task_id():
        notebook = session.get(api_path("notebooks", _task_id())).json()
    config = _config(wanted, os.path.splitext(origin)[0], notebook.get("config") or {})
    for text in (text for group in wanted.config for text in group):
        _put(config, text)
    body = {"config": config_text(config), "modelDefinition": _files(folder, script), "activate": True}
    if "project" not in config and "workspace" not in config:
        told: dict[str, Any] = notebook.get("notebook") or {}
        workspace_id = int(told.get("workspaceId") or _DEFAULT_WORKSPACE)
        project = _project(session, workspace_id, wanted.project)
        body |= {} if project is None else {"projectId": project}
    return body


def _config(wanted: argparse.Namespace, name: str, of_notebook: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration, before what `--config` changes."""
    environment: dict[str, Any] = of_notebook.get("environment") or {}
    resources: dict[str, Any] = of_notebook.get("resources") or {}
    own: int = resources.get("slots", 1)
    slots = own if wanted.slots is None else wanted.slots
    if slots < 0:
        raise _Refused(f"--slots: expected a number from 0 on, got {slots}")
    config: dict[str, Any] = {
        "name": wanted.name or name,
        "entrypoint": ["python3", SCRIPT],
        "searcher": {"name": "single", "metric": "loss"},
        "resources": {"slots_per_trial": slots, **_some(resources, _RESOURCES)},
        "environment": _some(environment, _ENVIRONMENT),
        **_some(of_notebook, ("bind_mounts",)),
    }
    if resources.get("resource_pool") and bool(slots) == bool(own):  # pools without GPUs are for work without
        config["resources"]["resource_pool"] = resources["resource_pool"]
    if wanted.max_length:
        config["searcher"]["max_length"] = _length(wanted.max_length)
    return config


def _some(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: values[name] for name in names if values.get(name)}


def _length(text: str) -> Any:
    number, _, unit = text.partition(":")
    if not number.isascii() or not number.isdigit() or (unit and unit not in _UNITS):
        raise _Refused(f"--max-length: expected a number, or one with a unit, as 10:epochs, got {text[:40]!r}")
    return {unit: int(number)} if unit else int(number)


def _put(config: dict[str, Any], text: str) -> None:
    """Set `key.sub=value`. Raises: _Refused."""
    import json

    import yaml

    way, equals, value = text.partition("=")
    *above, last = way.split(".")
    if not equals or not all((*above, last)):
        raise _Refused(f"--config {text[:80]!r}: expected key.sub=value")
    section: dict[str, Any] = config
    for name in above:
        below: Any = section.setdefault(name, {})
        if not isinstance(below, dict):
            raise _Refused(f"--config {text[:80]!r}: {name} has no fields")
        section = below  # pyright: ignore[reportUnknownVariableType]
    try:
        section[last] = json.loads(value)  # 1e-4 is a number
    except (ValueError, RecursionError):
        try:
            section[last] = yaml.safe_load(value)
        except (yaml.YAMLError, RecursionError):
            raise _Refused(f"--config {text[:80]!r}: its value is no YAML") from None


def _project(session: Session, workspace_id: int, name: str | None) -> int | None:
    """The project to put it into; None for the cluster's own. Raises: _Refused."""
    from determined.common.api._url import api_path
    from determined.common.experimental._wire import pages

    if workspace_id == _DEFAULT_WORKSPACE and name is None:
        return None
    listed = pages(session, api_path("workspaces", workspace_id, "projects"), {}, "projects", 200)
    found = {str(each["name"]): int(each["id"]) for each in listed if not each.get("archived")}
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name in found:
        return found[name]
    if not found:
        raise _Refused("the workspace of this notebook has no project: make one with `det project create`")
    raise _Refused(f"say the project by --project: one of {', '.join(map(repr, list(found)[:10]))}")


def _files(folder: str, script: str) -> list[dict[str, Any]]:
    """The files beside the notebook, and the script. Raises: InvalidContextException, _Refused."""
    import tempfile

    from determined.common.context import pack_context

    if os.path.lexists(os.path.join(folder, SCRIPT)):
        raise _Refused(f"{SCRIPT} in {folder} is in the way of the notebook's code: rename it")
    with tempfile.TemporaryDirectory() as other:
        path = os.path.join(other, SCRIPT)
        with open(path, "w", encoding="utf-8") as f:
            f.write(script)
        packed = pack_context(folder, [path])
    return [each for each in packed if _CHECKPOINTS not in str(each["path"]).split("/")]


def _created(session: Session, body: dict[str, Any]) -> dict[str, Any]:
    from determined.common.api._url import api_path
    from determined.common.experimental._wire import new_key, warnings_of

    answer: dict[str, Any] = session.post(
        api_path("experiments"), body, idempotency_key=new_key(), timeout_s=_CREATE_TIMEOUT_S
    ).json()
    for warning in warnings_of(answer):
        _say(f"warning: {warning}")
    return answer


def _ago(at: float) -> str:
    seconds = max(0, int(time.time() - at))
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
