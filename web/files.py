"""The files of the web UI as they are served: read once, compressed beforehand, and named by a digest of all of them.

The digest is part of their address, so that a browser keeps them for good and never mixes two releases.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import posixpath
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

#: Where they are, after which comes the digest.
ASSETS = "/det/assets"
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
#: The file that every address of a page is answered with, and the module that it starts.
_INDEX, _FIRST = "index.html", "app/main.js"
_IMPORTS = re.compile(r'^import[^"]*"(\.[^"]+)"', re.MULTILINE)
#: Types and comments of our modules are for who reads the source: a fifth of it.
_COMMENTS = re.compile(r"[ \t]*/\*\*.*?\*/|^[ \t]*//[^\n]*\n", re.DOTALL | re.MULTILINE)
#: Spaces at the beginning of a line, and empty lines: no text of a module has a line of its own.
_INDENTS = re.compile(r"^\s+", re.MULTILINE)
#: Of a style sheet likewise: comments, and spaces around what separates.
_STYLE = re.compile(r"/\*.*?\*/|\s*([{};,>])\s*|(?<=[\w-]:) ", re.DOTALL)
_DIGITS = 16


@dataclass(frozen=True)
class File:
    """One file.

    Attributes:
        content: As it is stored.
        compressed: By gzip; None if that would not make it smaller.
        media_type: With the character set.
    """

    content: bytes
    compressed: bytes | None
    media_type: str


@dataclass(frozen=True)
class Files:
    """All files by their path below `static`; `digest` changes when any of them does."""

    digest: str
    by_path: dict[str, File]
    index: bytes

    @property
    def base(self) -> str:
        """The address below which they are."""
        return f"{ASSETS}/{self.digest}"


@cache
def load() -> Files:
    """Read them. The result is the same for the life of the process."""
    found = dict(sorted(_below(files("web") / "static", "")))
    digest = hashlib.sha256()
    for path, content in found.items():
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    name = digest.hexdigest()[:_DIGITS]
    page = found.pop(_INDEX).decode()
    served = {path: _file(path, content) for path, content in found.items()}
    return Files(name, served, _index(page, f"{ASSETS}/{name}", needed(found, _FIRST)))


def needed(found: dict[str, bytes], path: str) -> list[str]:
    """A module, and all that it imports before it runs, by their paths. What it imports later is not among them."""
    reached = [path]
    for each in reached:
        here = each.rpartition("/")[0]
        for name in _IMPORTS.findall(found[each].decode()):
            target = posixpath.normpath(posixpath.join(here, name))
            if target not in reached:
                reached.append(target)
    return reached


def _below(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            found += _below(entry, f"{path}/")
        elif not path.endswith(".d.ts"):  # for the type checker only
            found.append((path, entry.read_bytes()))
    return found


def _file(path: str, content: bytes) -> File:
    if path.startswith("app/"):
        content = _INDENTS.sub("", _COMMENTS.sub("", content.decode())).encode()
    elif path.startswith("style/"):
        content = _STYLE.sub(r"\1", content.decode()).encode()
    suffix = f".{path.rpartition('.')[2]}"
    kind = _TYPES.get(suffix) or mimetypes.guess_type(path)[0] or "application/octet-stream"
    compressed = gzip.compress(content, 9, mtime=0)
    return File(content, compressed if len(compressed) < len(content) else None, kind)


def _index(page: str, base: str, modules: list[str]) -> bytes:
    """The page, with the addresses of this release; it names the modules, else each would wait for the one before."""
    preloads = "\n".join(f'<link rel="modulepreload" href="{base}/{path}">' for path in modules)
    return page.replace("<!-- modules -->", preloads).replace("{base}", base).encode()
