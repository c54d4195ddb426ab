"""MLflow: the folder of its file store, and a tracking server by its REST API."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from cli.trackers.runs import MOST_BYTES, Point, Run, Source, Unreadable, moment, value_of

if TYPE_CHECKING:
    import httpx

_STATES = {"FINISHED": "COMPLETED", "FAILED": "ERROR", "KILLED": "CANCELED", "RUNNING": "PAUSED", "SCHEDULED": "PAUSED"}
#: As the file store numbers them.
_NUMBERED = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
_API = "/api/2.0/mlflow"
_PAGE, _POINTS = 200, 25_000


def read(place: str, names: list[str]) -> Iterator[Source]:
    """The experiments of a file store or of a server; only those of these names, if there are any.

    Raises: Unreadable.
    """
    sources = (
        of_server(Server(place.rstrip("/"))) if place.startswith(("http://", "https://")) else _of_folder(Path(place))
    )
    found = {source.name: source for source in sources if not names or source.name in names}
    missing = [name for name in names if name not in found]
    if missing:
        raise Unreadable(f"{place} has no experiment {missing[0]!r}")
    yield from found.values()


# -- the file store ----------------------------------------------------------------------------------------------------


def _of_folder(folder: Path) -> Iterator[Source]:
    if not folder.is_dir():
        hint = (
            f": start `mlflow server --backend-store-uri sqlite:///{folder}`, and name its URL"
            if folder.exists()
            else ""
        )
        raise Unreadable(f"{folder} is no folder{hint}")
    if (folder / "mlruns").is_dir():
        folder = folder / "mlruns"
    experiments = [path for path in _folders(folder) if (path / "meta.yaml").is_file()]
    if not experiments:
        raise Unreadable(f"{folder} is no file store of MLflow: it has no folder with a meta.yaml")
    for path in experiments:
        about = _yaml(path / "meta.yaml")
        name = str(about.get("name") or path.name)
        if about.get("lifecycle_stage", "active") == "active":
            runs = (run for each in _folders(path) if (run := _stored(each)) is not None)
            yield Source(f"mlflow:{path.name}:{name}"[:255], name, runs, _texts(path / "tags"))


def _stored(folder: Path) -> Run | None:
    """A run of the file store; None if it is none, or was deleted."""
    if not (folder / "meta.yaml").is_file():
        return None
    about = _yaml(folder / "meta.yaml")
    if about.get("lifecycle_stage", "active") != "active":
        return None
    tags = _texts(folder / "tags")
    status = about.get("status")
    points = [
        point for name, path in _files(folder / "metrics") for point in _points(name, path)
    ]  # fmt: skip
    return Run(
        key=str(about.get("run_id") or folder.name),
        name=str(about.get("run_name") or tags.get("mlflow.runName") or folder.name),
        state=_STATES.get(_NUMBERED.get(status, "") if isinstance(status, int) else str(status), "PAUSED"),
        params={name: value_of(text) for name, text in _texts(folder / "params").items()},
        tags=tags,
        started=_time(about.get("start_time")),
        ended=_time(about.get("end_time")),
        points=points,
    )


def _points(name: str, path: Path) -> Iterator[Point]:
    """Lines of milliseconds, a value, and a step."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            try:
                yield Point(name, int(words[2]) if len(words) > 2 else 0, int(words[0]) / 1000, float(words[1]))
            except (IndexError, ValueError):
                raise Unreadable(f"{path}:{number}: {line[:60]!r}: expected a time, a value and a step") from None


def _folders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return sorted(
            Path(entry.path) for entry in entries
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
        )  # fmt: skip


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files by their path within a folder, which is their name: `/` may be in it. No links are followed."""
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(parent, name)
            if stat.S_ISREG(path.lstat().st_mode):
                yield path.relative_to(folder).as_posix(), path


def _texts(folder: Path) -> dict[str, str]:
    return {name: _text(path) for name, path in _files(folder)}


def _text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise Unreadable(f"{path} has more than {MOST_BYTES} bytes")
    return content.decode(errors="replace")


def _yaml(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(_text(path))
    except yaml.YAMLError as error:
        raise Unreadable(f"{path}: it is no YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict):
        raise Unreadable(f"{path}: expected `name: value` lines")
    return cast("dict[str, Any]", found)


def _time(milliseconds: Any) -> Any:
    try:
        return moment(int(milliseconds) / 1000) if milliseconds else None
    except (TypeError, ValueError):
        raise Unreadable(f"time {milliseconds!r}: expected milliseconds since 1970") from None


# -- a server ----------------------------------------------------------------------------------------------------------


def transport() -> httpx.BaseTransport:
    """By which a server is reached."""
    import httpx

    return httpx.HTTPTransport(retries=3)


class Server:
    """A tracking server. Login: as MLflow's own client, `MLFLOW_TRACKING_USERNAME` and `_PASSWORD`, or `_TOKEN`."""

    def __init__(self, url: str) -> None:
        import httpx

        user, token = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_TOKEN")
        password = os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
        self.url = url
        self.http = httpx.Client(
            base_url=url,
            auth=(user, password) if user else None,
            headers={"Authorization": f"Bearer {token}"} if token and not user else {},
            timeout=60,
            transport=transport(),
        )

    def ask(self, path: str, body: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
        """POST with a body, or else GET. Raises: Unreadable."""
        import httpx

        try:
            if body is None:
                response = self.http.get(f"{_API}/{path}", params={k: v for k, v in params.items() if v})
            else:
                response = self.http.post(f"{_API}/{path}", json=body)
            found: dict[str, Any] | None = response.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise Unreadable(f"{self.url}: {error or type(error).__name__}: expected a tracking server") from None
        if response.status_code != 200 or not isinstance(found, dict):
            said = found.get("message") if isinstance(found, dict) else ""
            raise Unreadable(f"{self.url}: {path}: {response.status_code} {str(said)[:300]}")
        return found

    def pages(self, path: str, key: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """All items of a list that comes in pages."""
        token = ""
        while True:
            found = self.ask(path, body | ({"page_token": token} if token else {}))
            yield from found.get(key) or []
            token = found.get("next_page_token") or ""
            if not token:
                return


def of_server(server: Server) -> Iterator[Source]:
    """The experiments of a tracking server."""
    for about in server.pages("experiments/search", "experiments", {"max_results": _PAGE}):
        number, name = str(about["experiment_id"]), str(about["name"])
        wanted = {"experiment_ids": [number], "max_results": _PAGE, "run_view_type": "ACTIVE_ONLY"}
        runs = (_told(server, run) for run in server.pages("runs/search", "runs", wanted))
        yield Source(f"mlflow:{number}:{name}"[:255], name, runs, _pairs(about.get("tags")))


def _told(server: Server, run: dict[str, Any]) -> Run:
    info, data = run["info"], cast("dict[str, Any]", run.get("data") or {})
    key = str(info.get("run_id") or info["run_uuid"])
    tags = _pairs(data.get("tags"))
    return Run(
        key=key,
        name=str(info.get("run_name") or tags.get("mlflow.runName") or key),
        state=_STATES.get(str(info.get("status")), "PAUSED"),
        params={name: value_of(text) for name, text in _pairs(data.get("params")).items()},
        tags=tags,
        started=_time(info.get("start_time")),
        ended=_time(info.get("end_time")),
        points=[point for name in _names(data) for point in _history(server, key, name)],
    )


def _names(data: dict[str, Any]) -> list[str]:
    return [str(each["key"]) for each in cast("list[dict[str, Any]]", data.get("metrics") or [])]


def _history(server: Server, run_id: str, name: str) -> Iterator[Point]:
    token = ""
    while True:
        found = server.ask("metrics/get-history", run_id=run_id, metric_key=name, max_results=_POINTS, page_token=token)
        for each in cast("list[dict[str, Any]]", found.get("metrics") or []):
            yield Point(name, int(each.get("step") or 0), int(each["timestamp"]) / 1000, float(each["value"]))
        token = found.get("next_page_token") or ""
        if not token:
            return


def _pairs(items: Any) -> dict[str, str]:
    found = cast("list[dict[str, Any]]", items or [])
    return {str(each["key"]): str(each.get("value", "")) for each in found}
