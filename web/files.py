"""The files of the web UI as they are served: read once, compressed once, and named by a digest of all of them.

The digest is part of their address, so that a browser keeps them for good and never mixes two releases.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import posixpath
import re
from dataclasses import dataclass
from functools import cache, cached_property
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
    """One file, which is made ready when it is first asked for: the API's first answer waits for none of it.

    Attributes:
        path: Below `static`.
        stored: Its bytes there.
    """

    path: str
    stored: bytes

    @cached_property
    def content(self) -> bytes:
        """What is served: our own modules and styles without comments."""
        if self.path.startswith("app/"):
            return _INDENTS.sub("", _COMMENTS.sub("", self.stored.decode())).encode()
        if self.path.startswith("style/"):
            return _STYLE.sub(r"\1", self.stored.decode()).encode()
        return self.stored

    @cached_property
    def compressed(self) -> bytes | None:
        """The same by gzip; None if that would not make it smaller."""
        compressed = gzip.compress(self.content, 9, mtime=0)
        return compressed if len(compressed) < len(self.content) else None

    @property
    def media_type(self) -> str:
        """With the character set."""
        suffix = f".{self.path.rpartition('.')[2]}"
        return _TYPES.get(suffix) or mimetypes.guess_type(self.path)[0] or "application/octet-stream"


@dataclass(frozen=True)
class Files:
    """All files by their path below `static`; `digest` changes when any of them does."""

    digest: str
    by_path: dict[str, File]
    page: str

    @property
    def base(self) -> str:
        """The address below which they are."""
        return f"{ASSETS}/{self.digest}"

    @cached_property
    def index(self) -> bytes:
        """The page, with this release's addresses. It names the modules, else each would wait for the one before."""
        modules = needed({path: file.stored for path, file in self.by_path.items()}, _FIRST)
        preloads = "\n".join(f'<link rel="modulepreload" href="{self.base}/{path}">' for path in modules)
        return self.page.replace("<!-- modules -->", preloads).replace("{base}", self.base).encode()


@cache
def load() -> Files:
    """Read them. The result is the same for the life of the process."""
    found = dict(sorted(_below(files("web") / "static", "")))
    digest = hashlib.sha256()
    for path, content in found.items():
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    page = found.pop(_INDEX).decode()
    return Files(digest.hexdigest()[:_DIGITS], {path: File(path, content) for path, content in found.items()}, page)


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
