"""A program on a pseudo-terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FAILED = 127


class Program:
    """Starts a program on a terminal of its own; `fd` is our end of it, which never blocks.

    Args:
        argv: Its command, with the whole path.
        environ: Its environment variables.
        columns: Of the terminal, characters.
        rows: Of the terminal, lines.

    Raises:
        OSError: This host has no terminal or no process left.
    """

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], columns: int, rows: int) -> None:
        import pty

        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            _become(argv, environ, columns, rows)
        # Other terminals' programs must not hold it open.
        os.set_inheritable(self.fd, False)
        os.set_blocking(self.fd, False)
        self._code: int | None = None

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal; its program learns it."""
        with contextlib.suppress(OSError):  # it has ended
            _set_size(self.fd, columns, rows)

    def exit_code(self) -> int | None:
        """As a shell has it: 128 and the signal that killed it; None while it runs."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # something else has waited for it
                pid, status = self.pid, 0
            if pid:
                signaled = os.WIFSIGNALED(status)
                self._code = 128 + os.WTERMSIG(status) if signaled else os.WEXITSTATUS(status)
        return self._code

    def end(self) -> None:
        """Hang up: what still runs on the terminal receives SIGHUP."""
        with contextlib.suppress(OSError):
            os.close(self.fd)


def _become(argv: Sequence[str], environ: Mapping[str, str], columns: int, rows: int) -> None:
    """In the new process. What Python has set for itself is not for its program. Never returns."""
    try:
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        _set_size(0, columns, rows)
        os.execve(argv[0], list(argv), dict(environ))
    finally:
        os._exit(_FAILED)


def _set_size(fd: int, columns: int, rows: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
