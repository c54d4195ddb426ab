"""Which trigrams a block of log lines has, so that a search reads only the blocks that may have what it looks for.

A trigram is three bytes that follow on each other, in UTF-8 and in lower case. Those of a block are a set of hashes, as
bits; what is looked for can be only where all of its own are. So a word that no block has is looked for in a kilobyte
of 2,000 lines, and not in their text.
"""

from __future__ import annotations

#: Bits of a hash at most, and at least; a hash of fewer bits is the upper part of one with more.
_MOST, _LEAST = 14, 8
#: As large a part of the bits may be set: the fewer bits, the more is found that is not there.
_FULL = 0.25
_LENGTH = 3
# multiplicative hashing (Knuth, TAOCP 3, 6.4) of the lower three of four bytes: the fourth is shifted out
_FACTOR = (2_654_435_761 << 8) & 0xFFFFFFFF


def trigrams(text: str) -> bytes:
    """The set of a text's trigrams: as many bits as keep it a quarter full, 256 to 16,384."""
    import numpy as np  # orchestrators write lines too, but no blocks of them: they do without it

    data = _lower(text)
    found = np.zeros(1 << _MOST, dtype=np.bool_)
    if len(data) >= _LENGTH:
        # four bytes from each place on, without a copy
        fours = np.ndarray((len(data) - _LENGTH + 1,), dtype="<u4", buffer=data + b"\0", strides=(1,))
        found[((fours * np.uint32(_FACTOR)) >> np.uint32(32 - _MOST)).astype(np.intp)] = True
    bits = _MOST
    while bits > _LEAST and found.sum() <= _FULL * (1 << bits - 1):
        found = found[::2] | found[1::2]
        bits -= 1
    return np.packbits(found, bitorder="little").tobytes()


class Wanted:
    """The trigrams of what is looked for.

    Args:
        text: It, in any case.
    """

    def __init__(self, text: str) -> None:
        self._hashes = _hashes(_lower(text))
        self._masks: dict[int, int] = {}

    def __bool__(self) -> bool:
        """Whether it is long enough to have any."""
        return bool(self._hashes)

    def may_be_in(self, found: bytes) -> bool:
        """Whether a text with these trigrams may have it; False: it has not."""
        mask = self._masks.get(len(found))
        if mask is None:
            shift = _MOST + 1 - (8 * len(found)).bit_length()
            mask = self._masks[len(found)] = sum(1 << place for place in {each >> shift for each in self._hashes})
        return int.from_bytes(found, "little") & mask == mask


def _lower(text: str) -> bytes:
    # of the whole text, as a search takes it: what stands before a letter may say what it is in lower case
    return text.lower().encode()


def _hashes(data: bytes) -> set[int]:
    """Of each trigram of a short text."""
    threes = (data[place : place + _LENGTH] for place in range(len(data) - _LENGTH + 1))
    return {(int.from_bytes(three, "little") * _FACTOR & 0xFFFFFFFF) >> 32 - _MOST for three in threes}
