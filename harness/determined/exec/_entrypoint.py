"""From the `entrypoint` of an experiment's configuration to the command that is executed."""

from __future__ import annotations

import os
import re
import sys

from determined._fail import fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

STARTUP_HOOK = "startup-hook.sh"
_TRIAL_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_PLAIN_WORDS = re.compile(r"[\w@%+:,./-]+( +[\w@%+=:,./-]+)*")
_SHELL_SYNTAX = re.compile(r"[;&|<>()`\n#{}!]|^\s*\w+=")
# The shell does these itself; there is no program to replace it with.
_SHELL_WORDS = {
    *("if", "for", "while", "until", "case", "cd", "export", "source", ".", "set", "eval", "exec", "exit", "ulimit"),
    *("umask", "trap", "unset", "wait", "alias", "return", "shift", "command", "type", "times", "readonly", "[["),
}


def resolve(entrypoint: Any, slots: int = 1) -> list[str]:
    """The arguments to execute. Ends the process with one sentence if there are none.

    Args:
        entrypoint: Of the experiment's configuration; one that names a trial class is run by `determined.exec.harness`.
        slots: Of the trial, on all hosts.
    """
    if isinstance(entrypoint, list):
        words: list[Any] = [*entrypoint]  # pyright: ignore[reportUnknownArgumentType]
        if not words or not all(isinstance(word, str) for word in words):
            fail(f"entrypoint in the experiment's configuration is {words!r}, but must be a list of strings, not empty")
        return words
    if not isinstance(entrypoint, str) or not entrypoint.strip():
        fail(
            f"entrypoint in the experiment's configuration is {entrypoint!r}, but must be a command, "
            "for example `python3 train.py`"
        )
    command = entrypoint.strip()
    if _TRIAL_CLASS.fullmatch(command):
        launcher = ["-m", "determined.launch.torch_distributed", "--", "--trial"]
        return [sys.executable, *(launcher if slots > 1 else ["-m", "determined.exec.harness"]), command]
    first = command.split()[0]
    if _PLAIN_WORDS.fullmatch(command) and first not in _SHELL_WORDS:
        return command.split()
    if _SHELL_SYNTAX.search(command) or first in _SHELL_WORDS:
        return ["sh", "-c", command]
    # One command with quotes or variables: the shell expands them and steps aside, so that signals reach the command.
    return ["sh", "-c", f"exec {command}"]


def command_line(words: Any) -> list[str]:
    """The arguments to execute of a command: a single word is a line for the shell. Ends the process if it has none."""
    if not words or not all(isinstance(word, str) for word in words):
        fail(f"entrypoint in the task's configuration is {words!r}, but must be a list of strings, not empty")
    return ["/bin/sh", "-c", *words] if len(words) == 1 else list(words)


def with_startup_hook(argv: list[str]) -> list[str]:
    """`argv` after `startup-hook.sh`, if the current folder has one: sourced, so that it can set variables."""
    if not os.path.isfile(STARTUP_HOOK):
        return argv
    shell = "bash" if _find("bash") else "sh"
    script = (
        f'. ./{STARTUP_HOOK}; s=$?; [ $s -eq 0 ] || {{ echo "ERROR: [$$] determined.exec.launch: {STARTUP_HOOK} '
        'ended with status $s" >&2; exit $s; }; exec "$@"'
    )
    return [shell, "-c", script, shell, *argv]


def execute(argv: list[str]) -> NoReturn:
    """Replace this process by the command. Ends with status 127 if it does not exist, 126 if it can't be executed."""
    env = os.environ.copy()
    own = os.path.dirname(sys.executable)
    found = _find("python3")
    # `python3` must be the one that this package is installed for.
    if own and (found is None or os.path.dirname(found) != own):
        env["PATH"] = own + os.pathsep + env.get("PATH", os.defpath)
        os.environ["PATH"] = env["PATH"]
    # Lines of output are logs: they must not wait for a full buffer.
    env.setdefault("PYTHONUNBUFFERED", "1")
    program = argv[0] if "/" in argv[0] else _find(argv[0])
    if program is None or not os.path.exists(program):
        fail(f"the entrypoint's command {argv[0]!r} was not found (in {os.getcwd()}, PATH={env['PATH']})", 127)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, argv, env)
    except OSError as e:
        fail(
            f"the entrypoint's command {argv[0]!r} can't be executed: {e.strerror}; "
            "a script needs a first line such as #!/bin/sh and the permission to be executed",
            126,
        )


def _find(name: str) -> str | None:
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder or ".", name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None
