"""What checks `deploy/`: Helm, Compose's own reader and promtool, from their Go modules, and Kubernetes' JSON Schemas.

All are kept in ~/.cache/undeterred/bin: the first time takes minutes, most of it Go's.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "deploy" / "helm" / "undeterred"
SCHEMAS = "1.37.0"
COMPOSE = "v2.16.2"
PROMETHEUS = "v0.316.0"
TOFU = "v1.10.10"
#: The oldest cluster that the chart takes, and the one that tests of pods run on. Helm that is built from its module says 1.20.
KUBERNETES = ("1.30.0", "1.35.0")

#: Helm and a whole cluster in one module, with the same libraries: compiled apart, Helm alone is half of the cluster's source.
_CLUSTER = REPOSITORY / "tests" / "kubernetes" / "programs"
_CACHE = Path.home() / ".cache" / "undeterred" / "bin"


def helm() -> Path:
    """Path of Helm. Raises: subprocess.CalledProcessError, if Go can't build it."""
    return of_cluster("helm", "helm.sh/helm/v3/cmd/helm") / "helm"


def compose_reader() -> Path:
    """Path of the reader of Compose files that Docker uses. Raises: subprocess.CalledProcessError."""
    return built("cmd", "github.com/compose-spec/compose-go/v2/cmd", COMPOSE)


def promtool() -> Path:
    """Path of the tool that checks Prometheus' rules. Raises: subprocess.CalledProcessError."""
    return built("promtool", "github.com/prometheus/prometheus/cmd/promtool", PROMETHEUS)


def tofu() -> Path:
    """Path of OpenTofu, which reads Terraform's modules. Raises: subprocess.CalledProcessError, if Go can't build it."""

    def build(folder: Path) -> None:
        module = f"github.com/opentofu/opentofu@{TOFU}"
        found = subprocess.run(["go", "mod", "download", "-json", module], capture_output=True, text=True, check=True)
        # its go.mod replaces other modules, which `go install` refuses: it is built as its own main module
        source = folder / "source"
        shutil.copytree(json.loads(found.stdout)["Dir"], source, copy_function=shutil.copyfile)
        source.chmod(0o755)
        compile_go("build", "-o", str(folder / "tofu"), "./cmd/tofu", cwd=source)
        for path in source.rglob("*/"):
            path.chmod(0o755)
        shutil.rmtree(source)

    return kept(f"tofu-{TOFU}", build) / "tofu"


def schemas() -> Path:
    """Folder of the Python package kubernetes-validate. Raises: subprocess.CalledProcessError."""

    def install(folder: Path) -> None:
        wanted = f"kubernetes-validate=={SCHEMAS}"
        uv = REPOSITORY / ".venv" / "bin" / "uv"
        subprocess.run([uv, "pip", "install", "--quiet", "--target", folder, wanted], check=True)

    return kept(f"kubernetes-validate-{SCHEMAS}", install)


def built(program: str, module: str, version: str) -> Path:
    """Path of a program, compiled from its Go module the first time. Raises: subprocess.CalledProcessError."""

    def build(folder: Path) -> None:
        compile_go("install", f"{module}@{version}", GOBIN=str(folder))

    return kept(f"{module.split('/')[1]}-{version}", build) / program


def of_cluster(program: str, package: str, *, linked_with: str = "", aliases: Sequence[str] = ()) -> Path:
    """A folder with a program of the module that has Helm and the cluster, also by its aliases.

    Raises: RuntimeError, if there is no Go; subprocess.CalledProcessError.
    """
    digest = hashlib.sha256(linked_with.encode())
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((_CLUSTER / name).read_bytes())

    def build(folder: Path) -> None:
        # the same tags for all of them, which share what is compiled
        flags = ["-mod=readonly", "-tags", "grpcnotrace", "-ldflags", f"-s -w {linked_with}"]
        compile_go("build", *flags, "-o", str(folder / program), package, cwd=_CLUSTER)
        for alias in aliases:
            (folder / alias).symlink_to(program)

    return kept(f"{program}-{digest.hexdigest()[:12]}", build)


def compile_go(verb: str, *words: str, cwd: Path | None = None, **environment: str) -> None:
    """`go build` or `go install`, in three fifths of the time that they take by default.

    Nothing is inlined, what only a debugger reads is left out, and garbage is collected later: up to 1.4 GB are held
    instead of 0.6. What is compiled for one program serves the others, as all have the same flags.

    Raises: RuntimeError, if there is no Go; subprocess.CalledProcessError.
    """
    go = shutil.which("go")
    if go is None:
        raise RuntimeError("these tests compile programs that no registry has, and there is no Go on PATH; install it.")
    line = [go, verb, "-gcflags=all=-dwarf=false -l", "-trimpath", "-buildvcs=false", *words]
    settings = {"GOGC": "400", "CGO_ENABLED": "0", **environment}
    subprocess.run(line, cwd=cwd, env={**os.environ, **settings}, check=True)


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """A folder that is made once, for all processes of this user."""
    folder = _CACHE / name
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".complete").exists():
            make(folder)
            (folder / ".complete").touch()
    return folder


def render(
    *arguments: str, values: str = "smallest", namespace: str = "undeterred"
) -> subprocess.CompletedProcess[str]:
    """What `helm template` makes of the chart with `ci/<values>-values.yaml`, for a release `det`. It may have failed."""
    line = [helm(), "template", "det", CHART, "--namespace", namespace, "--kube-version", KUBERNETES[-1]]
    line += ["--values", CHART / "ci" / f"{values}-values.yaml", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


if __name__ == "__main__":
    for get in (helm, compose_reader, promtool, schemas, tofu):
        print(f"{get()}", file=sys.stderr)
