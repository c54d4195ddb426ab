"""The first program of a container: it starts whichever harness is installed beside the user's code.

Run as `python -c <this file> layer [source target]…` with the interpreter of the container, so this file keeps to what
Python 3.7 knows and imports little. Our harness prepares its container itself and is run in this process. Determined's,
as published, is started as its own images start it: prepare, the user's hook, prepare the rest, launch. A command needs
no harness unless it has files; notebooks, shells and TensorBoards need ours. Source: spec container-contract.md §1 and
§12.

Determined's harness has its folders at fixed places. In Docker they are there; among plain processes each container
sees its own folders at those places, in a mount namespace of its own. That needs root, or a kernel that gives ordinary
users namespaces and the places made once: the pairs in the arguments say what is to be seen where.

A process has the interpreter of its host. What its code or its start-up hook installs goes into a layer over that, a
virtual environment in the container's own folder: no other container sees it, and it is removed with the folder. The
layer is written here, by the user that the container runs as, and without starting Python once more.
"""

from __future__ import annotations

import importlib.util
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_SEQUENCE = """
python=$1
shift
"$python" -m determined.exec.prep_container "$@" || exit $?
if [ -f startup-hook.sh ]; then
    . ./startup-hook.sh
    s=$?
    [ $s -eq 0 ] || { echo "ERROR: [$$] undeterred: startup-hook.sh ended with status $s" >&2; exit $s; }
fi
"$python" -m determined.exec.prep_container --rendezvous || exit $?
exec "$python" -m determined.exec.launch
"""
_COMMAND = """
if [ -f startup-hook.sh ]; then
    . ./startup-hook.sh
    s=$?
    [ $s -eq 0 ] || { echo "ERROR: [$$] undeterred: startup-hook.sh ended with status $s" >&2; exit $s; }
fi
exec "$@"
"""
# Kinds whose server only our harness runs, and its extra with what the server needs.
_SERVERS = {"NOTEBOOK": "[notebook]", "SHELL": "", "TENSORBOARD": "[tensorboard]"}
# Has the authorities that sign the API's certificate, for the file that DET_MASTER_CERT_FILE names.
API_CA = "UNDETERRED_API_CA"
_NEW_MOUNTS, _NEW_USERS = 0x20000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER
# How the second line of a script begins whose first would be too long for the kernel.
_LONG_START = b"'''exec'"
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000  # MS_BIND, MS_REC, MS_PRIVATE


def main(layer: str, places: list[str]) -> None:
    """Start the harness.

    Args:
        layer: The folder for what this container installs; empty if its whole file system is its own.
        places: A folder and where the container must see it, in turn.
    """
    _name_user()
    if API_CA in os.environ:
        try:
            _write(os.environ["DET_MASTER_CERT_FILE"], os.environ.pop(API_CA).encode())
        except OSError as error:
            _fail(f"can't write the certificate of the API's authority: {error.strerror} ({error.filename})")
    if layer:
        try:
            _put_over(layer)
        except OSError as error:
            _fail(f"can't make a layer over {sys.executable}: {error.strerror} ({error.filename})")
    package = importlib.util.find_spec("determined")
    kind = os.environ.get("DET_TASK_TYPE", "TRIAL")
    is_trial = kind == "TRIAL"
    if package is None and is_trial:
        _fail(f"{sys.executable} has no package `determined`: install a harness beside the user's code")
    prepare = _preparation(package)
    if kind in _SERVERS and (package is None or prepare is not None):
        has = "no harness" if package is None else "Determined's harness"
        _fail(
            f"{sys.executable} has {has}, but a {kind.lower()} needs ours: install it into the image with"
            f" `pip install undeterred-harness{_SERVERS[kind]}`"
        )
    if prepare is not None or package is None:
        steps = [] if prepare is None else _first_steps(prepare, is_trial)
        if prepare is not None and (is_trial or _has_files()):
            if places:
                _show(places)
            _make_folders()
        shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        if is_trial:
            os.execv(shell, [shell, "-c", _SEQUENCE, shell, sys.executable, *steps])
        _become_command(shell, steps)
    import runpy

    runpy.run_module("determined.exec.launch", run_name="__main__", alter_sys=True)


def _preparation(package: Any) -> str | None:
    """The file by which Determined's own harness prepares its container; None without such a harness."""
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        path = os.path.join(folder, "exec", "prep_container.py")
        if os.path.exists(path):
            return path
    return None


def _has_files() -> bool:
    return os.environ.get("DET_TASK_HAS_FILES") == "1"


def _become_command(shell: str, steps: list[str]) -> NoReturn:
    """Execute the words of a command, where our harness, which does that otherwise, is not installed."""
    import json
    import subprocess

    if _has_files():
        if not steps:
            _fail(f"{sys.executable} has no harness that fetches the files of a command: install ours beside it")
        code = subprocess.call([sys.executable, "-m", "determined.exec.prep_container", *steps])
        if code != 0:
            sys.exit(code)
    folder = os.environ.get("DET_TASK_WORK_DIR") or "."
    try:
        os.chdir(folder)
    except OSError as error:
        _fail(f"work_dir in the task's configuration is {folder!r}, which can't be entered: {error.strerror}")
    words = json.loads(os.environ["DET_TASK_ENTRYPOINT"])
    argv = ["/bin/sh", "-c", *words] if len(words) == 1 else words
    os.execv(shell, [shell, "-c", _COMMAND, shell, *argv])


def _name_user() -> None:
    """A user by number whom the image does not know has no home, and no name to make a cache folder of."""
    try:
        import pwd

        pwd.getpwuid(os.getuid())
    except (ImportError, KeyError):
        for name in ("LOGNAME", "USER"):
            os.environ.setdefault(name, str(os.getuid()))
        if os.environ.get("HOME", "/") == "/":
            os.environ["HOME"] = os.getcwd()


def _put_over(layer: str) -> None:
    """Make the layer, and have it found first; this process and what it imported stay as they are."""
    import site

    below = os.path.dirname(sys.executable)
    base, settings = os.path.realpath(sys.executable), {}
    if sys.prefix != sys.base_prefix:
        with open(os.path.join(sys.prefix, "pyvenv.cfg")) as file:
            settings = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in file)}
        if base.startswith(os.path.realpath(sys.prefix) + os.sep):  # copied there, not linked
            base = os.path.join(settings["home"], os.path.basename(base))
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages, programs = os.path.join(layer, "lib", version, "site-packages"), os.path.join(layer, "bin")
    for folder in (packages, programs):
        os.makedirs(folder, exist_ok=True)
    _link("lib", os.path.join(layer, "lib64"))
    for name in ("python", "python3", version):
        _link(base, os.path.join(programs, name))
    has_system = settings.get("include-system-site-packages", "true")
    _write(
        os.path.join(layer, "pyvenv.cfg"),
        f"home = {os.path.dirname(base)}\ninclude-system-site-packages = {has_system}\n".encode(),
    )
    if settings:
        found = [folder for folder in site.getsitepackages() if folder.startswith(sys.prefix + os.sep)]
        text = "; ".join(["import site", *(f"site.addsitedir({folder!r})" for folder in found)])
        _write(os.path.join(packages, "_trial_environment.pth"), text.encode())
    _copy_programs(below, programs)
    sys.executable = os.path.join(programs, "python3")
    if "DET_PYTHON_EXECUTABLE" in os.environ:
        os.environ["DET_PYTHON_EXECUTABLE"] = sys.executable
    os.environ["VIRTUAL_ENV"] = layer
    os.environ["PATH"] = programs + os.pathsep + os.environ.get("PATH", os.defpath)


def _copy_programs(below: str, programs: str) -> None:
    """Commands such as `pip` and `torchrun` name their interpreter in the first line: here, that of the layer."""
    for name in os.listdir(below):
        target = os.path.join(programs, name)
        try:
            with open(os.path.join(below, name), "rb") as file:
                text = file.read(512)
                if os.path.lexists(target) or text[:2] != b"#!" or os.fsencode(below) + b"/python" not in text:
                    continue
                text += file.read()
        except OSError:  # a folder, or not ours to read
            continue
        body = text.partition(b"\n")[2]
        if body.startswith(_LONG_START):
            body = body.partition(b"\n")[2].partition(b"\n")[2]
        _write(target, b"#!/usr/bin/env python3\n" + body, 0o755)
    if importlib.util.find_spec("pip") is None:
        say = f"{below}/python3 has no pip: give it one by `{below}/python3 -m ensurepip`, or `uv pip install pip`"
        for name in ("pip", "pip3"):  # never another environment's
            _write(os.path.join(programs, name), f"#!/bin/sh\necho 'ERROR: {say}' >&2\nexit 1\n".encode(), 0o755)


def _link(source: str, target: str) -> None:
    if not os.path.lexists(target):
        os.symlink(source, target)


def _write(path: str, data: bytes, mode: int = 0o644) -> None:
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)


def _first_steps(prepare: str, is_trial: bool) -> list[str]:
    """The options of the first preparation, which were renamed between the generations; none if it can't be done."""
    with open(prepare, "rb") as file:
        is_newer = b"--download_context_directory" in file.read()
    if not is_trial:
        return ["--download_context_directory"] if is_newer else []
    return ["--download_context_directory", "--resources", "--proxy"] if is_newer else ["--trial", "--resources"]


def _show(places: list[str]) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_MOUNTS) != 0:
        if libc.unshare(_NEW_MOUNTS | _NEW_USERS) != 0:
            _fail_to_show("a mount namespace", os.strerror(ctypes.get_errno()))
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open("/proc/self/" + name, "w") as file:
                file.write(text)
    libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    for source, target in zip(places[::2], places[1::2]):  # noqa: B905 - Python 3.7 has no strict
        try:
            if not os.path.isdir(source):  # checkpoint storage that was never used: many users write there
                os.makedirs(source)
                os.chmod(source, 0o777)
            os.makedirs(target, exist_ok=True)
        except OSError as error:
            _fail_to_show(target, str(error.strerror))
        if libc.mount(os.fsencode(source), os.fsencode(target), None, _BIND | _RECURSIVE, None) != 0:
            _fail_to_show(target, os.strerror(ctypes.get_errno()))


def _make_folders() -> None:
    """What Determined's harness finds in its container. Source: spec container-contract.md §3."""
    for name in ("info", "pythonuserbase", "train/model", "train/logs"):
        os.makedirs(f"/run/determined/{name}", exist_ok=True)
    for fd, name in ((1, "stdout"), (2, "stderr")):  # this process becomes the one whose output is the container's
        link = f"/run/determined/train/logs/{name}.log"
        if not os.path.islink(link):
            os.symlink(f"/proc/{os.getpid()}/fd/{fd}", link)


def _fail_to_show(what: str, why: str) -> NoReturn:
    _fail(
        f"{what}: {why}. Determined's own harness has its files at fixed places: run the agent as root, let root make"
        " /run/determined and /determined_shared_fs once, or use the Docker launcher or our harness"
    )


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"ERROR: [{os.getpid()}] undeterred: {message}\n")
    sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
