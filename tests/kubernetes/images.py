"""Images for a node that pulls none, made without an engine: of folders that are packed, and of a few words about them."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deploy.programs import REPOSITORY, kept

TRIAL_IMAGE = "undeterred/trial:dev"
SERVER_IMAGE = "undeterred/server:dev"
#: A third of a server's environment, for the importance of hyperparameters alone.
_HEAVY = ("scikit-learn", "scipy", "joblib")
_VARIABLES = (
    "PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin",
    "LANG=C.UTF-8",
    "DET_SKIP_PIP_INSTALL=1",
)


@dataclass(frozen=True)
class Image:
    """A name for layers.

    Attributes:
        name: With its tag.
        layers: Files of tar, the lowest first.
        entrypoint: Its program.
        user: Empty: root.
    """

    name: str
    layers: Sequence[Path]
    entrypoint: Sequence[str] = ()
    user: str = ""


def trial_files(folder: Path) -> Path:
    """The files of a trial image with the harness alone, as `deploy/images/build-local.sh` takes them from this host."""
    return _built(folder / "trial.tar", "-e", str(environment("trial", "./harness")))


def server_files(folder: Path) -> Path:
    """The files of the image of the cluster's processes, made by the same script."""
    return _built(
        folder / "server.tar", "-s", "-e", str(environment("server", "./harness", ".[server]", without=_HEAVY))
    )


def environment(name: str, *packages: str, without: Sequence[str] = ()) -> Path:
    """An environment with packages of this repository, and with what they need; made the first time.

    Args:
        name: Of its folder.
        packages: As pip takes them.
        without: What they need, and tests do not.
    """
    digest = hashlib.sha256()
    for file in ("constraints.txt", "pyproject.toml", "harness/pyproject.toml"):
        digest.update((REPOSITORY / file).read_bytes())

    def make(folder: Path) -> None:
        uv = [REPOSITORY / ".venv" / "bin" / "uv", "--quiet"]
        subprocess.run([*uv, "venv", "--clear", "--python", "3.11", folder], check=True)
        line = [*uv, "pip", "install", "--compile-bytecode", "--python", folder / "bin" / "python"]
        subprocess.run([*line, "-c", "constraints.txt", *packages], cwd=REPOSITORY, check=True)
        if without:
            subprocess.run([*uv, "pip", "uninstall", "--python", folder / "bin" / "python", *without], check=True)

    return kept(f"{name}-{digest.hexdigest()[:12]}", make)


def archived(to: Path, *images: Image) -> None:
    """Write images as `docker load` and `ctr images import` read them; layers that they share are there once."""
    digests = {layer: _digest(layer) for image in images for layer in image.layers}
    entries: list[dict[str, Any]] = []
    with tarfile.open(to, "w") as archive:
        for image in images:
            config = json.dumps(_config(image, [digests[layer] for layer in image.layers])).encode()
            name = f"{hashlib.sha256(config).hexdigest()}.json"
            layers = [f"{digests[layer]}.tar" for layer in image.layers]
            entries.append({"Config": name, "RepoTags": [image.name], "Layers": layers})
            _add(archive, name, config)
        _add(archive, "manifest.json", json.dumps(entries).encode())
        for layer, digest in digests.items():
            archive.add(layer, f"{digest}.tar")


def _built(to: Path, *options: str) -> Path:
    script = REPOSITORY / "deploy" / "images" / "build-local.sh"
    subprocess.run([script, *options, "-o", to], check=True, stdout=subprocess.DEVNULL)
    return to


def _config(image: Image, digests: Sequence[str]) -> dict[str, Any]:
    machine = platform.machine()
    return {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
        "os": "linux",
        "config": {"Entrypoint": list(image.entrypoint), "Env": list(_VARIABLES), "User": image.user},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created_by": "tests"} for _ in digests],
    }


def _digest(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))
