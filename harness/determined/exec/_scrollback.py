"""The newest output of a terminal, by its offset from the first byte: who was away asks for what is missing."""

from __future__ import annotations


class Scrollback:
    """Keeps the newest bytes.

    Args:
        size: How many, bytes.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept = bytearray()
        self._end = 0

    @property
    def start(self) -> int:
        """The offset of the oldest byte that is kept."""
        return self._end - len(self._kept)

    @property
    def end(self) -> int:
        """The offset of the byte that comes next."""
        return self._end

    def append(self, data: bytes) -> None:
        """Add output; what is over the size goes, the oldest first."""
        self._kept += data
        self._end += len(data)
        if len(self._kept) > self._size:
            del self._kept[: len(self._kept) - self._size]

    def read(self, offset: int, most: int) -> bytes:
        """At most `most` bytes from an offset that is kept."""
        first = offset - self.start
        return bytes(self._kept[first : first + most])
