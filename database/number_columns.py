"""Columns of numbers in few bytes: 64-bit integers and floats, to the bit, as NumPy reads them.

A column is its planes: all lowest bytes, then all second ones, and so on. A plane with one value is that value, one
that zlib makes smaller is compressed, any other is as it is. Before that, integers become differences where these are
smaller, and floats with few decimals (`0.1234`) the integers that they are at that scale.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
_Words = NDArray[np.uint64]

#: Of a column: how its numbers became words, the scale or 0, how many, the first, and what is added to each word.
_HEAD = struct.Struct("<BBIQQ")
_PLAIN, _GAPS, _BITS = 0, 1, 2
_CONSTANT, _RAW, _COMPRESSED = 0, 1, 2
_LENGTH = struct.Struct("<I")
#: Decimals that are looked for.
_MOST_DECIMALS = 9
#: Numbers by which the decimals are guessed.
_SAMPLE = 16
#: A plane is compressed if that leaves less than this share of it.
_WORTH = 0.9
#: Runs that leave less than this share of a plane are good enough.
_LITTLE = 0.25
#: Planes that are shorter are left as they are.
_SHORT = 32
#: How often two bytes of a plane of noise are equal, in 1/256: in one of so many, and with what chance adds.
_MANY, _EVEN = 2000, 1.25


def pack_integers(values: Integers) -> bytes:
    """A column of integers."""
    return _packed(values, 0)


def unpack_integers(packed: bytes) -> Integers:
    """What `pack_integers` was given."""
    return _unpacked(packed)[0]


def pack_floats(values: Floats) -> bytes:
    """A column of floats; of NaN the bits are kept, too."""
    for decimals in _decimals(values):
        scaled = _scaled(values, decimals)
        if scaled is not None:
            return _packed(scaled, decimals + 1)
    words = values.astype("<f8").view("<u8")
    least = int(words.min()) if len(words) else 0
    return _HEAD.pack(_BITS, 0, len(words), 0, least) + _planes(words - np.uint64(least))


def unpack_floats(packed: bytes) -> Floats:
    """What `pack_floats` was given."""
    numbers, scale = _unpacked(packed)
    if packed[0] == _BITS:
        return numbers.view("<f8")
    return numbers / 10.0 ** (scale - 1)


def _decimals(values: Floats) -> list[int]:
    """The decimals that some of the numbers have at most, if there is such a count."""
    sample = values[:: max(1, len(values) // _SAMPLE)]
    for decimals in range(_MOST_DECIMALS + 1):
        if _scaled(sample, decimals) is not None:
            # others may have one more: a 0 at the end of a number is not seen
            return list(range(decimals, min(decimals + 2, _MOST_DECIMALS) + 1))
    return []


def _scaled(values: Floats, decimals: int) -> Integers | None:
    """The numbers as integers at a scale, if they are exactly that."""
    scale = 10.0**decimals
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.rint(values * scale)
        if not bool(np.all(np.abs(scaled) < 2.0**53)):  # False for NaN as well
            return None
    integers = scaled.astype(np.int64)
    is_same = np.array_equal((integers / scale).view(np.int64), values.astype("<f8").view(np.int64))  # -0.0 is not 0.0
    return integers if is_same else None


def _packed(values: Integers, scale: int) -> bytes:
    words = values.astype("<i8").view("<u8")
    if len(words) < 2:
        first = int(words[0]) if len(words) else 0
        return _HEAD.pack(_PLAIN, scale, len(words), 0, first) + _planes(words - np.uint64(first))
    gaps = np.diff(words)  # modulo 2^64, as the sum is that undoes it
    least, least_gap = int(values.min()), int(gaps.view("<i8").min())
    width = int(values.max()) - least
    gap_width = int(gaps.view("<i8").max()) - least_gap
    if gap_width < width:
        base = least_gap % 2**64
        return _HEAD.pack(_GAPS, scale, len(words), int(words[0]), base) + _planes(gaps - np.uint64(base))
    base = least % 2**64
    return _HEAD.pack(_PLAIN, scale, len(words), 0, base) + _planes(words - np.uint64(base))


def _unpacked(packed: bytes) -> tuple[Integers, int]:
    """The numbers as they are stored, and their scale."""
    kind, scale, count, first, base = _HEAD.unpack_from(packed)
    if kind != _GAPS:
        return (_joined(packed, count) + np.uint64(base)).view("<i8"), scale
    words = np.empty(count, "<u8")
    words[0] = first
    words[1:] = _joined(packed, count - 1)
    words[1:] += np.uint64(base)
    return np.cumsum(words, dtype="<u8").view("<i8"), scale


def _planes(words: _Words) -> bytes:
    parts: list[bytes] = []
    for plane in np.ascontiguousarray(words.astype("<u8").view(np.uint8).reshape(-1, 8).T):
        if not len(plane) or bool((plane == plane[0]).all()):
            parts.append(bytes((_CONSTANT, int(plane[0]) if len(plane) else 0)))
            continue
        raw = plane.tobytes()
        small = _compressed(raw) if len(raw) >= _SHORT and not _is_noise(plane) else raw
        if len(small) < _WORTH * len(raw):
            parts.append(bytes((_COMPRESSED,)) + _LENGTH.pack(len(small)) + small)
        else:
            parts.append(bytes((_RAW,)) + raw)
    return b"".join(parts)


def _is_noise(plane: NDArray[np.uint8]) -> bool:
    """Whether all 256 bytes are about as frequent, as in the last digits of what was measured: zlib tries in vain."""
    counts = np.bincount(plane, minlength=256)
    return len(plane) >= _MANY and int(counts @ counts) * 256 < _EVEN * len(plane) ** 2


def _compressed(raw: bytes) -> bytes:
    """As runs, which most planes have, or as repetitions: to look for the longest of these takes ten times as long."""
    runs = zlib.compressobj(6, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    small = runs.compress(raw) + runs.flush()
    return small if len(small) < _LITTLE * len(raw) else min(small, zlib.compress(raw, 1), key=len)


def _joined(packed: bytes, count: int) -> _Words:
    """The words of the planes behind the head."""
    at = _HEAD.size
    planes = np.zeros((count, 8), np.uint8)
    for place in range(8):
        kind = packed[at]
        if kind == _CONSTANT:
            if packed[at + 1]:
                planes[:, place] = packed[at + 1]
            at += 2
        elif kind == _RAW:
            planes[:, place] = np.frombuffer(packed, np.uint8, count, at + 1)
            at += 1 + count
        else:
            (length,) = _LENGTH.unpack_from(packed, at + 1)
            at += 1 + _LENGTH.size
            planes[:, place] = np.frombuffer(zlib.decompress(packed[at : at + length]), np.uint8)
            at += length
    return planes.reshape(-1).view("<u8")
