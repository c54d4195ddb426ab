"""A trial's log, configuration and records in one file."""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from cli import session


def pack(trial_id: int, folder: Path) -> Path:
    """Write `det-bundle-trial-<id>.tar.gz` into `folder`; its path. Raises: NotFoundException, OSError."""
    trial = session.fetch(f"trials/{trial_id}")["trial"]
    experiment = session.fetch(f"experiments/{trial['experimentId']}")
    name = f"det-bundle-trial-{trial_id}"
    records = {
        "trial_metadata.json": trial | {"workloads": session.fetch_all(f"trials/{trial_id}/workloads", "workloads")},
        "experiment_metadata.json": experiment["experiment"],
        "config.json": experiment.get("config") or experiment["experiment"]["config"],
        "why.json": session.fetch(f"undeterred/trials/{trial_id}/why"),
        "master_info.json": session.fetch("master"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as bundle, TemporaryFile() as log:
        for file_name, content in records.items():
            data = json.dumps(content, indent=4, sort_keys=True).encode()
            _add(bundle, f"{name}/{file_name}", io.BytesIO(data), len(data))
        for line in _log(trial_id):
            log.write(line.encode())
        size = log.tell()
        log.seek(0)
        _add(bundle, f"{name}/trial_logs.txt", log, size)
    return path


def _log(trial_id: int) -> Iterator[str]:
    for line in session.get().stream(f"/api/v1/trials/{trial_id}/logs"):
        yield str(line.get("message") or "")


def _add(bundle: tarfile.TarFile, name: str, content: Any, size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime = size, int(time.time())
    bundle.addfile(member, content)
