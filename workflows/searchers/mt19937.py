"""The Mersenne Twister, seeded as Determined does, so that a seed gives the same trials there and here.

Equal to numpy's ``RandomState(seed)``. Python's own generator has the same core but another seeding, and Temporal's
sandbox guards its module; forty lines are cheaper than either. Source: spec searchers.md §1; Matsumoto and Nishimura,
"Mersenne Twister", 1998 (N = 624, M = 397).
"""

import base64
import struct
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

_N = 624
_M = 397
_MATRIX = 0x9908B0DF
_MASK32 = 0xFFFFFFFF


def _pack(words: list[int]) -> str:
    return base64.b64encode(struct.pack(f"<{_N}I", *words)).decode()


def _unpack(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    raw = base64.b64decode(value, validate=True)
    if len(raw) != 4 * _N:
        raise ValueError(f"the generator's state has {len(raw)} bytes, not {4 * _N}")
    return list(struct.unpack(f"<{_N}I", raw))


class MT19937(BaseModel):
    """A random generator whose whole state can be written down and read back.

    Attributes:
        words: The 624 words of state; base64 when serialized, which is half as long as numbers.
        position: Next word to hand out, 624 when the block is used up.
    """

    model_config = ConfigDict(extra="forbid")

    words: Annotated[list[int], BeforeValidator(_unpack), PlainSerializer(_pack)]
    position: int

    @classmethod
    def seeded(cls, seed: int) -> Self:
        """Start from a seed in [0, 2**32)."""
        words = [seed & _MASK32]
        for i in range(1, _N):
            previous = words[-1]
            words.append((1812433253 * (previous ^ (previous >> 30)) + i) & _MASK32)
        return cls(words=words, position=_N)

    def uint32(self) -> int:
        """The next word, uniform in [0, 2**32)."""
        if self.position >= _N:
            self._twist()
        y = self.words[self.position]
        self.position += 1
        y ^= y >> 11
        y ^= (y << 7) & 0x9D2C5680
        y ^= (y << 15) & 0xEFC60000
        return y ^ (y >> 18)

    def below(self, n: int) -> int:
        """A whole number in [0, n), n at least 1; n = 1 draws nothing."""
        limit = n - 1
        if limit == 0:
            return 0
        mask = (1 << limit.bit_length()) - 1
        while True:
            # Two words where one is too short, the upper half first, as numpy does.
            word = self.uint32() if limit <= _MASK32 else (self.uint32() << 32) | self.uint32()
            if word & mask <= limit:
                return word & mask

    def unit(self) -> float:
        """A number in [0, 1) with 53 random bits."""
        high, low = self.uint32() >> 5, self.uint32() >> 6
        return (high * 67108864 + low) / 9007199254740992

    def uniform(self, low: float, high: float) -> float:
        """A number in [low, high)."""
        return low + (high - low) * self.unit()

    def randbytes(self, n: int) -> bytes:
        """That many bytes: words, the low byte first."""
        words = [self.uint32() for _ in range((n + 3) // 4)]
        return struct.pack(f"<{len(words)}I", *words)[:n]

    def uuid4(self) -> str:
        """A random uuid in its usual form."""
        raw = bytearray(self.randbytes(16))
        raw[6] = 0x40 | (raw[6] & 0x0F)
        raw[8] = 0x80 | (raw[8] & 0x3F)
        text = raw.hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def _twist(self) -> None:
        words = self.words
        for i in range(_N):
            y = (words[i] & 0x80000000) | (words[(i + 1) % _N] & 0x7FFFFFFF)
            words[i] = words[(i + _M) % _N] ^ (y >> 1) ^ (_MATRIX if y & 1 else 0)
        self.position = 0
