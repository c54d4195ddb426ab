"""Regular expressions of log policies, in RE2, which reads a line in time that is linear in its length.

Python's own engine can run indefinitely on a line that was crafted for it, and any user can write log lines. RE2 is
loaded when the first pattern is looked at: workflows import this package, and need no engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

#: What one set of patterns may take, compiled and while it reads. RE2's own default.
_MAX_MEMORY_BYTES = 8 * 2**20
#: Matches only itself. RE2 is silent when a set needs more memory than that, and finds nothing: this must be found.
_PROBE = "\0"
#: What says something else of many lines than of one, even where every line is one to `^` and `$`.
_OF_WHOLE_TEXT = re.compile(r"\\[Az]|\(\?(?!i?[:)]|P<)")


class PatternRefused(ValueError):
    """RE2 doesn't take a pattern, or not all of them together; the message says why.

    `index` is the place of the pattern in the list, None if they are too much together only.
    """

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class PatternSet:
    """Patterns that are searched for in one pass over a line, however many they are.

    Args:
        patterns: in RE2's syntax; `.` matches everything but the end of a line, upper and lower case differ.

    Raises: PatternRefused.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = list(patterns)
        re2, options = _engine(), _options()
        self._set: Any = re2.Set.SearchSet(options)
        for index, pattern in enumerate(patterns):
            try:
                re2.compile(pattern, options)  # tells why, which a set doesn't
                self._set.Add(pattern)
            except re2.error as error:
                raise PatternRefused(_reason(error), index) from None
            except UnicodeEncodeError:
                raise PatternRefused("a character of it is half of a surrogate pair", index) from None
        self._count = len(patterns)
        try:
            self._set.Add(f"^{_PROBE}$")
            self._set.Compile()
        except re2.error:
            raise PatternRefused(_TOO_LARGE) from None
        if self._count not in (self._set.Match(_PROBE) or ()):
            raise PatternRefused(_TOO_LARGE)

    def matches(self, line: str) -> list[int]:
        """Indices of the patterns that occur in the line, ascending."""
        found: list[int] = self._set.Match(line.encode("utf-8", "replace")) or []
        return sorted(index for index in found if index < self._count)

    def may_match(self, lines: Sequence[str]) -> bool:
        """Whether a pattern may occur in one of these lines; False is certain. It costs a fraction of asking each."""
        if self._of_many is None:
            return True
        return bool(self._of_many.Match("\n".join(lines).encode("utf-8", "replace")))

    @cached_property
    def _of_many(self) -> Any:
        """What finds at least what is in a line of many, searched as one text; None if there is no such set."""
        if any(_OF_WHOLE_TEXT.search(pattern) for pattern in self._patterns):
            return None
        re2 = _engine()
        found = re2.Set.SearchSet(_options())
        for pattern in [*self._patterns, f"^{_PROBE}$"]:
            found.Add(f"(?m){pattern}")
        try:
            found.Compile()
        except re2.error:
            return None
        return found if found.Match(f"\n{_PROBE}\n") else None


_TOO_LARGE = f"needs more than {_MAX_MEMORY_BYTES // 2**20} MiB of memory: repeat less, or list less"


def _engine() -> Any:
    """RE2's module, which comes without types."""
    import re2

    return re2


def _options() -> Any:
    options = _engine().Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY_BYTES
    options.never_capture = True
    return options


def _reason(error: Exception) -> str:
    """RE2's words, which come as bytes."""
    said = error.args[0] if error.args else ""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
