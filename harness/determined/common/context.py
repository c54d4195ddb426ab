"""The model directory on its way to the cluster (`pack_context`) and into a container (`unpack_context`).

Source: spec experiment-lifecycle.md §2.
"""

from __future__ import annotations

import os
import pathlib
import stat

from determined.common._tar import check_members, write_members, write_stream
from determined.errors import InvalidContextException

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO, Any, Callable

    IsIgnored = Callable[[str], bool]

# 128 MiB of message, as base64 in it, less 1 MiB for the rest.
MAX_CONTEXT_BYTES = (128 << 20) // 8 * 6 - (1 << 20)
# What a container unpacks may be a little larger: an older client counted differently.
_MAX_UNPACKED_BYTES = 128 << 20
_MAX_NAMED_FILES = 5
# Beyond this a context is uploaded in chunks: base64 within one request costs more than the requests for the chunks.
LARGE_BYTES = 8 << 20

BUILT_IN_IGNORES = (
    "__pycache__/",
    "*.py[co]",
    "*$py.class",
    "terraform",
    "terraform_data",
    "terraform.tfstate*",
    "terraform.tfvars*",
    ".terraform*",
    ".git/",
    ".vscode/",
    ".idea/",
    ".mypy_cache/",
    "/shared_fs",
)
IGNORE_FILE = ".detignore"
# What a v1File is: the type byte of a tar header.
FILE_TYPE, FOLDER_TYPE = 48, 53


def pack_context(
    model_dir: str | os.PathLike[str], includes: Iterable[str | os.PathLike[str]] = ()
) -> list[dict[str, Any]]:
    """A model directory as the list of v1File objects that creating an experiment takes.

    Left out is what `.detignore` (gitignore patterns) and the built-in list say. Links are sent as what they point to.

    Args:
        model_dir: The directory.
        includes: Further files and directories; each comes under its own base name, a directory with its own
            `.detignore`.

    Raises:
        InvalidContextException: No directory, two things of one name, files that can't be read, or over 95 MiB.
    """
    return _read_all(_entries(model_dir, includes))


class Folder:
    """What would be sent of a model directory.

    Args:
        model_dir: The directory; None if there are `includes` only, or nothing.
        includes: As for `pack_context`.

    Attributes:
        entries: Name and path of each file and folder, in order.
        sizes: Of the files, in bytes, by name.
        context_id: What the cluster calls it once it was uploaded in chunks.

    Raises:
        InvalidContextException: No directory, or two things of one name.
    """

    def __init__(
        self, model_dir: str | os.PathLike[str] | None, includes: Iterable[str | os.PathLike[str]] = ()
    ) -> None:
        self.entries = _entries(model_dir, includes)
        self.sizes = {name: path.stat().st_size for name, path in self.entries if path.is_file()}
        self.context_id = ""
        self._files: list[dict[str, Any]] | None = None

    @property
    def is_large(self) -> bool:
        """Whether it is better uploaded in chunks than as a part of the request that needs it."""
        return sum(self.sizes.values()) > LARGE_BYTES

    def files(self) -> list[dict[str, Any]]:
        """As `pack_context`. Raises: InvalidContextException."""
        if self._files is None:
            self._files = _read_all(self.entries)
        return self._files


def _entries(
    model_dir: str | os.PathLike[str] | None, includes: Iterable[str | os.PathLike[str]]
) -> list[tuple[str, pathlib.Path]]:
    entries: list[tuple[str, pathlib.Path]] = [] if model_dir is None else _entries_of(pathlib.Path(model_dir))
    names = {name.split("/", 1)[0] for name, _ in entries}
    for include in map(pathlib.Path, includes):
        name = include.resolve().name
        if not name:
            raise InvalidContextException(f"can't include {str(include)!r}: it has no name; include a folder below it")
        if name in names:
            raise InvalidContextException(
                f"duplicate path detected: {name!r}; rename {str(include)!r} or the other one of that name"
            )
        names.add(name)
        if include.is_dir():
            entries.append((name, include))
            entries.extend(_walk(include, name + "/"))
        elif include.exists():
            entries.append((name, include))
        else:
            raise InvalidContextException(f"can't include {str(include)!r}: it does not exist")
    return entries


def _entries_of(root: pathlib.Path) -> list[tuple[str, pathlib.Path]]:
    if not root.is_dir():
        raise InvalidContextException(
            f"the model directory {str(root)!r} is not a directory; give the folder with your training code"
        )
    return list(_walk(root, ""))


def files_of(
    model_dir: str | os.PathLike[str], leaves_out: Callable[[pathlib.Path], bool], most: int = 20_000
) -> list[tuple[str, pathlib.Path]]:
    """The files and folders below a directory that a checkpoint keeps as its code: name below it, and path.

    Args:
        model_dir: The directory.
        leaves_out: Says of a folder that nothing below it is wanted.
        most: The most files and folders there may be.

    Raises:
        InvalidContextException: More than `most`, or more than 95 MiB: this is no model directory.
    """
    found: list[tuple[str, pathlib.Path]] = []
    total = 0
    for name, path in _walk(pathlib.Path(model_dir), "", leaves_out):
        found.append((name, path))
        total += path.stat().st_size if path.is_file() else 0
        if len(found) > most or total > MAX_CONTEXT_BYTES:
            raise InvalidContextException(
                f"the folder {os.fspath(model_dir)!r} has more than {most} files or {MAX_CONTEXT_BYTES >> 20} MiB: "
                f"list what is no code in a file named {IGNORE_FILE}"
            )
    return found


def unpack_context(tgz_bytes: bytes, dest: str | os.PathLike[str], max_bytes: int = _MAX_UNPACKED_BYTES) -> None:
    """Unpack a tar.gz into `dest`, all of it or nothing.

    Args:
        tgz_bytes: The archive; empty means that there is nothing to unpack.
        dest: The folder; made if needed. What it has already stays, except for files of the same name.
        max_bytes: The most that the files may have together.

    Raises:
        InvalidContextException: The archive is damaged, too large, or has a member that leads out of `dest`.
    """
    target = os.fspath(dest)
    os.makedirs(target, exist_ok=True)
    if not tgz_bytes:
        return
    import io
    import tarfile

    data = _decompress(tgz_bytes, max_bytes)

    def write(scratch: str) -> None:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            write_members(archive, check_members(archive, max_bytes), scratch)

    _unpack(target, write)


def unpack_stream(tar: IO[bytes], dest: str | os.PathLike[str], max_bytes: int) -> None:
    """Unpack a tar into `dest` while it arrives, all of it or nothing.

    Args:
        tar: Where it is read from, not packed.
        dest: As for `unpack_context`.
        max_bytes: The most that the files may have together.

    Raises:
        InvalidContextException: The archive is damaged, too large, or has a member that leads out of `dest`.
    """
    import tarfile

    target = os.fspath(dest)
    os.makedirs(target, exist_ok=True)

    def write(scratch: str) -> None:
        with tarfile.open(fileobj=tar, mode="r|") as archive:
            write_stream(archive, scratch, max_bytes)

    _unpack(target, write)


def _unpack(target: str, write: Callable[[str], None]) -> None:
    """Have an archive written into a folder of its own, and what is there moved to `target`: all of it or nothing."""
    import shutil
    import tarfile

    # Inside of the target, so that moving from there is a rename; not in it at once, so that a failure leaves nothing.
    scratch = os.path.join(target, f".determined-unpack-{os.getpid()}")
    try:
        os.mkdir(scratch)
        write(scratch)
        _move_into(scratch, target)
    except (tarfile.TarError, EOFError) as e:
        raise InvalidContextException(f"the archive is damaged: {e}") from e
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _walk(
    root: pathlib.Path, prefix: str, leaves_out: Callable[[pathlib.Path], bool] = lambda _: False
) -> Iterator[tuple[str, pathlib.Path]]:
    is_ignored = _ignore_rule(root)

    def walk(folder: pathlib.Path, below: str, above: tuple[str, ...]) -> Iterator[tuple[str, pathlib.Path]]:
        try:
            names = sorted(os.listdir(folder))
        except OSError as e:
            raise InvalidContextException(
                f"can't read the folder {str(folder)!r}: {e.strerror}; make it readable or add it to {IGNORE_FILE}"
            ) from e
        for name in names:
            path, relative = folder / name, below + name
            is_dir = path.is_dir()
            if name == IGNORE_FILE or is_ignored(relative) or (is_dir and is_ignored(relative + "/")):
                continue
            if is_dir and leaves_out(path):
                continue
            yield prefix + relative, path
            if is_dir:
                real = os.path.realpath(path)
                if real in above:
                    raise InvalidContextException(
                        f"the link {str(path)!r} leads to a folder that contains it; "
                        f"remove it or add it to {IGNORE_FILE}"
                    )
                yield from walk(path, relative + "/", (*above, real))

    return walk(root, "", (os.path.realpath(root),))


def _ignore_rule(root: pathlib.Path) -> IsIgnored:
    patterns = list(BUILT_IN_IGNORES)
    ignore_file = root / IGNORE_FILE
    if ignore_file.is_file():
        patterns += ignore_file.read_text(encoding="utf-8").splitlines()
    import pathspec

    return pathspec.GitIgnoreSpec.from_lines(patterns).match_file


def _read_all(entries: list[tuple[str, pathlib.Path]]) -> list[dict[str, Any]]:
    import base64

    files: list[dict[str, Any]] = []
    sizes: dict[str, int] = {}
    total = 0  # not summed up anew for each file: a folder of a hundred thousand would take minutes to refuse
    unreadable: list[str] = []
    for name, path in entries:
        try:
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                files.append(_v1_file(name, status, FOLDER_TYPE, b""))
                continue
            if not stat.S_ISREG(status.st_mode):
                continue  # sockets and pipes have no content to send
            sizes[name] = status.st_size
            if total + status.st_size > MAX_CONTEXT_BYTES:
                total += status.st_size
                continue  # go on for the sizes alone: the error names the largest files
            content = path.read_bytes()
            sizes[name] = len(content)
            total += len(content)
            files.append(_v1_file(name, status, FILE_TYPE, base64.b64encode(content)))
        except OSError as e:
            unreadable.append(f"{name} ({e.strerror})")
    if unreadable:
        raise InvalidContextException(
            f"{len(unreadable)} file(s) of the context can't be read: {', '.join(unreadable[:_MAX_NAMED_FILES])}"
            f"{' …' if len(unreadable) > _MAX_NAMED_FILES else ''}; make them readable or add them to {IGNORE_FILE}"
        )
    if total > MAX_CONTEXT_BYTES:
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:_MAX_NAMED_FILES]
        raise InvalidContextException(
            "The total size of context directory and included files and directories exceeds the maximum allowed size "
            f"{MAX_CONTEXT_BYTES / (1 << 20):.1f}MB: it is {total / (1 << 20):.1f}MB. The largest files: "
            + ", ".join(f"{name} ({size / (1 << 20):.1f}MB)" for name, size in largest)
            + f". List what the training does not need in a file named {IGNORE_FILE}, and load data from elsewhere"
        )
    return files


def _v1_file(name: str, status: os.stat_result, kind: int, content: bytes) -> dict[str, Any]:
    return {
        "path": name,
        "type": kind,
        "content": content.decode("ascii"),
        "mtime": str(int(status.st_mtime)),
        "mode": status.st_mode,
        "uid": 0,
        "gid": 0,
    }


def _decompress(data: bytes, max_bytes: int) -> bytes:
    import zlib

    # Headers and padding come on top of the files.
    limit = max_bytes + (64 << 20)
    decompressor = zlib.decompressobj(wbits=31)
    try:
        unpacked = decompressor.decompress(data, limit + 1)
    except zlib.error as e:
        raise InvalidContextException(f"the archive is damaged: {e}") from e
    if len(unpacked) > limit:
        raise InvalidContextException(f"the archive is refused: it unpacks to more than {limit:,} bytes")
    if not decompressor.eof:
        raise InvalidContextException("the archive is damaged: its end is missing")
    return unpacked


def _move_into(source: str, target: str) -> None:
    for name in os.listdir(source):
        old, new = os.path.join(source, name), os.path.join(target, name)
        if os.path.isdir(old) and not os.path.islink(old) and os.path.isdir(new) and not os.path.islink(new):
            _move_into(old, new)
        else:
            if os.path.isdir(new) and not os.path.islink(new):
                raise InvalidContextException(f"can't unpack {name!r}: {target} has a folder of that name already")
            if os.path.isdir(old) and not os.path.islink(old) and os.path.lexists(new):
                os.unlink(new)
            os.rename(old, new)
