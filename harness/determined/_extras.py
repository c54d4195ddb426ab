"""What to say when the library that a part of this package is built upon is not installed."""

from __future__ import annotations


def missing(module: str, library: str, extra: str) -> ImportError:
    """The error for an import of `module` where `library` is not installed; the extra of our distribution brings it."""
    return ImportError(
        f"{module} needs {library}, which is not installed here: pip install 'undeterred-harness[{extra}]'",
        name=library.partition(" ")[0],
    )
