"""What JupyterLab puts off until it is needed, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=True)


def test_jupyterlab_starts_without_parsers_of_addresses() -> None:
    imported = _python("-X", "importtime", "-m", "determined.exec._jupyterlab", "--version").stderr
    names = {line.rpartition("|")[2].strip() for line in imported.splitlines()}
    assert {"jsonschema", "jupyter_events"} <= names
    assert not names & {"rfc3987_syntax", "lark"}


def test_addresses_are_checked_as_before() -> None:
    script = """
import sys
from determined.exec._jupyterlab import put_off
put_off("rfc3987_syntax")
import jsonschema
checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
print("lark" in sys.modules, *(checker.conforms(text, "iri") for text in ("https://пример.test/ü", "no address")))
import rfc3987_syntax
print("lark" in sys.modules, rfc3987_syntax.is_valid_syntax("iri", "https://a.test"), rfc3987_syntax.__file__[-11:])
"""
    assert _python("-c", script).stdout.splitlines() == ["False True False", "True True __init__.py"]


def test_what_is_missing_stays_missing() -> None:
    script = """
import sys
from determined.exec._jupyterlab import put_off
put_off("no_such_package")
try:
    import no_such_package
except ImportError as e:
    print(e)
"""
    assert _python("-c", script).stdout == "No module named 'no_such_package'\n"
