"""Run a program as if on Windows, as far as Python's libraries tell: `python as_windows.py PROGRAM.py WORD…`.

What only POSIX has can't be imported, and its names in `os`, `signal` and `socket` are gone. Libraries of others, and
Python's own, are loaded before: theirs is the other system's code, which this machine can't run. With
UNDETERRED_AS=macos only what macOS lacks is gone.
"""

from __future__ import annotations

import asyncio
import email.utils
import getpass
import importlib.abc
import logging.handlers
import multiprocessing
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import webbrowser
import zipfile
from collections.abc import Sequence
from types import ModuleType

import httpx
import pathspec
import psutil
import pydantic
import rich.console
import rich.live
import rich.progress
import rich.table
import ruamel.yaml
import typer.core
import typer.testing
import yaml
import zmq

#: Kept alive here; nothing else is done with them.
LOADED: Sequence[ModuleType] = (
    *(asyncio, email.utils, getpass, logging.handlers, multiprocessing, shutil, tarfile, tempfile, webbrowser, zipfile),
    *(subprocess, httpx, pathspec, psutil, pydantic, rich.console, rich.live, rich.progress, rich.table, ruamel.yaml),
    *(typer.core, typer.testing, yaml, zmq),
)
MODULES = frozenset(
    {"fcntl", "termios", "tty", "pty", "pwd", "grp", "resource", "syslog", "crypt", "readline", "curses"}
)
_OF_OS = """
fork forkpty getuid geteuid getgid getegid getgroups setuid setgid setsid getpgid getpgrp setpgid killpg mkfifo mknod
chown lchown fchown fchmod uname getloadavg statvfs fstatvfs openpty posix_spawn posix_fadvise posix_fallocate pread pwrite
preadv pwritev sendfile sched_getaffinity sched_setaffinity nice sync fdatasync wait3 wait4 waitid WIFSIGNALED WTERMSIG
ttyname tcgetpgrp ctermid confstr sysconf getresuid initgroups lockf pidfd_open pipe2 chroot getpriority setpriority
O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_NOCTTY O_DSYNC O_SYNC O_ASYNC O_DIRECT O_PATH O_TMPFILE O_NOATIME
"""
_OF_SIGNAL = """
SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGWINCH SIGCHLD SIGCLD SIGALRM SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGQUIT SIGPIPE
SIGTRAP SIGBUS SIGSYS SIGURG SIGIO SIGPROF SIGVTALRM SIGXCPU SIGXFSZ SIGPOLL SIGPWR SIGRTMIN SIGRTMAX pause alarm
setitimer getitimer pthread_kill pthread_sigmask sigpending sigwait siginterrupt
"""
_LINUX_ONLY = """
sched_getaffinity sched_setaffinity pidfd_open pipe2 posix_fadvise posix_fallocate getresuid
O_DIRECT O_PATH O_TMPFILE O_NOATIME SIGCLD SIGPOLL SIGPWR SIGRTMIN SIGRTMAX
"""


class _Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def become(system: str) -> None:
    """Take from this process what `win32` or `darwin` does not have."""
    if system == "win32":
        for name in [name for name in sys.modules if name.partition(".")[0] in MODULES]:
            del sys.modules[name]
        sys.meta_path.insert(0, _Absent())
    names = (_OF_OS + _OF_SIGNAL if system == "win32" else _LINUX_ONLY).split()
    for module in (os, signal):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    if system == "win32":
        del socket.AF_UNIX
    sysconfig.get_config_vars()  # reads a file that is named after the system
    sys.platform = system


if __name__ == "__main__":
    become("darwin" if os.environ.get("UNDETERRED_AS") == "macos" else "win32")
    program, sys.argv = sys.argv[1], sys.argv[1:]
    if program == "det":
        from cli.main import run

        run()
    else:
        runpy.run_path(program, run_name="__main__")
