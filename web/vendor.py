"""`python -m web.vendor`: get the libraries of the web UI from npm again, and write what is vendored of them.

They are ES modules already, but for their imports of each other and one that is a script. `vendored.json` has the
version, the licence and the SHA-256 of each; `--check` compares the files with it, without any network.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "static" / "vendor"
RECORD = Path(__file__).parent / "vendored.json"


@dataclass(frozen=True)
class Source:
    """A file of an npm package: what it is called here, and what is changed in it."""

    package: str
    version: str
    licence: str
    path: str
    target: str
    replaced: tuple[tuple[str, str], ...] = ()
    added: str = ""


SOURCES = (
    Source("preact", "11.2.0", "MIT", "dist/preact.mjs", "preact.js"),
    Source("preact", "11.2.0", "MIT", "hooks/dist/hooks.mjs", "hooks.js", (('"preact"', '"./preact.js"'),)),
    Source("htm", "3.1.1", "Apache-2.0", "dist/htm.module.js", "htm.js"),
    Source("uplot", "1.6.32", "MIT", "dist/uPlot.iife.min.js", "uplot.js", added="\nexport default uPlot;\n"),
    Source("uplot", "1.6.32", "MIT", "dist/uPlot.min.css", "uplot.css"),
)


def main(arguments: list[str]) -> int:
    """Write the files, or compare them; the exit code is 1 if they differ from the record."""
    if arguments == ["--check"]:
        wrong = _differences()
        for line in wrong:
            print(line, file=sys.stderr)  # noqa: T201
        return 1 if wrong else 0
    FOLDER.mkdir(exist_ok=True)
    record: dict[str, dict[str, str]] = {}
    for source in SOURCES:
        content = _content(source)
        (FOLDER / source.target).write_bytes(content)
        record[source.target] = {
            "package": source.package,
            "version": source.version,
            "licence": source.licence,
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    return 0


def _differences() -> list[str]:
    record = json.loads(RECORD.read_text())
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.iterdir() if path.suffix != ".ts"
    }
    unknown = [f"{name}: vendored, but not in {RECORD.name}" for name in found.keys() - record.keys()]
    return unknown + [
        f"{name}: expected SHA-256 {entry['sha256']}, found {found.get(name, 'no file')}"
        for name, entry in record.items()
        if found.get(name) != entry["sha256"]
    ]


def _content(source: Source) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["npm", "pack", "--silent", f"{source.package}@{source.version}"],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
        )
        archive = Path(folder, packed.stdout.strip()).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        member = tar.extractfile(f"package/{source.path}")
        assert member is not None, f"{source.package} has no {source.path}"
        text = member.read().decode()
    for before, after in source.replaced:
        assert before in text, f"{source.path} does not have {before}"
        text = text.replace(before, after)
    lines = [line for line in text.splitlines() if not line.startswith("//# sourceMappingURL")]
    return ("\n".join(lines) + "\n" + source.added).encode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
