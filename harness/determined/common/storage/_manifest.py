"""What a checkpoint consists of, as it is written beside its files when it is complete: sizes and XXH3 hashes.

A hash tells what disks and networks do to files: that takes no cryptography, whose price every checkpoint would pay.
"""

from __future__ import annotations

from determined import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Any

METADATA_FILE = "metadata.json"
_VERSION = 1
#: Some 200,000 files. The cluster reads manifests that users could have written.
MANIFEST_LIMIT = 32 << 20


def manifest_name(storage_id: str) -> str:
    """The name of a checkpoint's manifest: beside its folder, so that a listing of the folder has its files only."""
    return f".{storage_id}.manifest.json"


class FileEntry:
    """A file of a checkpoint. Folders have size 0 and no hash.

    Attributes:
        size: In bytes.
        xxh3: XXH3 of 128 bits, in hexadecimal; "" if it is not known, as for folders and for what Determined wrote.
        part_size: Bytes of each of `parts` but the last, of a large file in a store that copies parts; else 0.
        parts: Their XXH3 hashes, in the order of the file.
    """

    __slots__ = ("part_size", "parts", "size", "xxh3")

    def __init__(self, size: int, xxh3: str = "", part_size: int = 0, parts: Iterable[str] = ()) -> None:
        self.size = size
        self.xxh3 = xxh3
        self.part_size = part_size
        self.parts = tuple(parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileEntry) and (self.size, self.xxh3) == (other.size, other.xxh3)

    def __hash__(self) -> int:
        return hash((self.size, self.xxh3))

    def __repr__(self) -> str:
        return f"FileEntry({self.size}, {self.xxh3!r})"


def new_hash() -> Any:
    """A hash as the manifest has it: to `update`, then to ask for its `hexdigest`."""
    import xxhash

    return xxhash.xxh3_128()


def entry_of(content: bytes) -> FileEntry:
    """Size and hash of a file with this content."""
    found = new_hash()
    found.update(content)
    return FileEntry(len(content), found.hexdigest())


class Manifest:
    """What a checkpoint consists of, and who wrote it.

    Attributes:
        files: Path -> size and hash, sorted; folders end with "/".
        writer: The id of the task that wrote it; "" outside of a cluster. The cluster serves and deletes a checkpoint
            for that task only: who merely reports the name of a folder has not written what is in it.
    """

    __slots__ = ("files", "writer")

    def __init__(self, files: Mapping[str, FileEntry], writer: str = "") -> None:
        self.files = dict(sorted(files.items()))
        self.writer = writer

    def without(self, paths: Collection[str]) -> Manifest:
        """The same without some of its files."""
        return Manifest({path: entry for path, entry in self.files.items() if path not in paths}, self.writer)


def encode(manifest: Manifest) -> bytes:
    """The manifest as UTF-8 JSON."""
    import json

    listed: dict[str, dict[str, Any]] = {}
    for path, entry in manifest.files.items():
        listed[path] = {"size": entry.size, "xxh3": entry.xxh3}
        if entry.parts:
            listed[path] |= {"part_size": entry.part_size, "parts": entry.parts}
    return json.dumps({"version": _VERSION, "writer": manifest.writer, "files": listed}, indent=1).encode()


def decode(raw: bytes, where: str) -> Manifest:
    """What a manifest says.

    Args:
        raw: The manifest.
        where: Its place, for the message.

    Raises:
        CheckpointCorruptError: It is no manifest, or one of a later version, or it names a file outside.
    """
    import json

    try:
        read: dict[str, Any] = json.loads(raw)
        if read["version"] != _VERSION:
            raise errors.CheckpointCorruptError(
                f"{where} has version {read['version']!r}, but this release reads version {_VERSION}: update "
                "undeterred-harness"
            )
        entries = {str(path): _entry(e) for path, e in read["files"].items()}
        writer = str(read.get("writer", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise errors.CheckpointCorruptError(f"{where} is damaged: it is no manifest ({e!r})") from e
    for path in entries:
        if not is_inside(path):
            raise errors.CheckpointCorruptError(f"{where} is refused: {path!r} leads out of the checkpoint")
    return Manifest(entries, writer)


def _entry(read: dict[str, Any]) -> FileEntry:
    parts = map(str, read.get("parts", ()))
    return FileEntry(int(read["size"]), str(read["xxh3"]), int(read.get("part_size", 0)), parts)


def too_large(where: str) -> errors.CheckpointCorruptError:
    """The error for a manifest that nobody reads."""
    return errors.CheckpointCorruptError(f"{where} is refused: it has more than {MANIFEST_LIMIT >> 20} MiB")


def is_inside(path: str) -> bool:
    """Whether a relative path (of a file, or of a folder with "/" at its end) stays below where it starts."""
    parts = path[:-1].split("/") if path.endswith("/") else path.split("/")
    return "\0" not in path and not any(part in ("", ".", "..") for part in parts)


def check_file(where: str, expected: FileEntry, found: FileEntry) -> None:
    """Compare what is there with what the manifest says; a hash that one of them has not is not compared.

    Raises:
        CheckpointCorruptError: It differs.
    """
    if found.size != expected.size:
        raise errors.CheckpointCorruptError(
            f"{where} is damaged: expected {expected.size:,} bytes, found {found.size:,}"
        )
    if expected.xxh3 and found.xxh3 and found.xxh3 != expected.xxh3:
        raise errors.CheckpointCorruptError(f"{where} is damaged: expected XXH3 {expected.xxh3}, found {found.xxh3}")


def missing(where: str) -> errors.CheckpointCorruptError:
    """The error for a file that the manifest lists and that is not there."""
    return errors.CheckpointCorruptError(f"{where} is missing: the checkpoint's manifest lists it")
