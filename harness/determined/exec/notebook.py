"""What the container of a notebook runs: JupyterLab, behind `/proxy/<task id>/`.

Source: spec tasks.md §3.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys

from determined._fail import fail
from determined.exec import _idle
from determined.exec._environment import TaskEnvironment
from determined.exec._ready import HOST, answers, port_of, private_folder, serve, write_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    """Run JupyterLab to its end, with its status."""
    env = TaskEnvironment(os.environ)
    if importlib.util.find_spec("jupyterlab") is None:
        fail(
            "JupyterLab is not installed: `pip install undeterred-harness[notebook]` into this task's image,"
            " or into the Python that trials run in"
        )
    token = os.environ.get("DET_NOTEBOOK_TOKEN", "")
    if not token:  # without one Jupyter would let everybody in
        fail("the environment variable DET_NOTEBOOK_TOKEN is not set; a notebook of the cluster has it")
    port, base = port_of("NOTEBOOK_PORT"), f"/proxy/{env.task_id}/"
    os.environ["SHELL"] = _shell()
    folder = private_folder(env, "jupyter")
    # The token and the kernels' keys are there too: they go with the container.
    os.environ["JUPYTER_RUNTIME_DIR"] = private_folder(env, "jupyter/runtime")
    _show_parts_below_a_layer()
    config = os.path.join(folder, "config.json")
    write_private(config, json.dumps(_config(port, base, token)))
    _load_our_magic(folder)
    watch = _idle.watcher(env, port, base, token)
    argv = [sys.executable, "-m", "determined.exec._jupyterlab", f"--config={config}"]
    raise SystemExit(serve(env, argv, lambda: answers(port, f"{base}api"), when_ready=watch))


def _config(port: int, base: str, token: str) -> dict[str, Any]:
    """Jupyter's settings. In a file, as command lines are seen by all users of a host."""
    return {
        "ServerApp": {
            "ip": HOST,
            "port": port,
            "port_retries": 0,
            "base_url": base,
            # Whoever gets here has come through the master, under its name.
            "allow_origin": "*",
            "allow_remote_access": True,
            "trust_xheaders": True,
            "allow_root": True,
            "open_browser": False,
            "root_dir": "/",
        },
        "FileContentsManager": {"preferred_dir": os.getcwd()},
        "IdentityProvider": {"token": token},
        "PasswordIdentityProvider": {"hashed_password": "", "password_required": False},
        # A kernel outlives its browser, and what it prints meanwhile is kept for the session that comes back.
        "MappingKernelManager": {"cull_idle_timeout": 0, "buffer_offline_messages": True},
        **_encryption(),
        "LabApp": {"check_for_updates_class": "jupyterlab.NeverCheckForUpdate", "news_url": None},
    }


#: What each kernel runs first. IPython has no other place for it that is neither the image's nor the user's profile; a
#: kernel of another Python, which has no `determined`, goes without. The user's own file comes after it.
_STARTUP = """if "get_ipython" in globals():
    try:
        from determined.ipython import load_ipython_extension as _load
    except ImportError:
        pass
    else:
        _load(get_ipython())
        del _load
"""


def _load_our_magic(folder: str) -> None:
    """Have kernels know `%det`."""
    before = os.environ.get("PYTHONSTARTUP") or ""
    more = f"exec(compile(open({before!r}).read(), {before!r}, 'exec'))\n" if os.path.isfile(before) else ""
    path = os.path.join(folder, "startup.py")
    write_private(path, _STARTUP + more)
    os.environ["PYTHONSTARTUP"] = path


def _show_parts_below_a_layer() -> None:
    """Jupyter looks for its pages and extensions beside the interpreter; one that lies over another has none there."""
    found = importlib.util.find_spec("jupyterlab")
    package = os.path.dirname(found.origin) if found is not None and found.origin else ""
    prefix = os.path.abspath(os.path.join(package, *[os.pardir] * 4))  # of lib/python3.x/site-packages/jupyterlab
    lab = os.path.join(prefix, "share", "jupyter", "lab")
    if not package or prefix == os.path.abspath(sys.prefix) or not os.path.isdir(lab):
        return
    os.environ.setdefault("JUPYTERLAB_DIR", lab)
    for name, below in (("JUPYTER_PATH", "share/jupyter"), ("JUPYTER_CONFIG_PATH", "etc/jupyter")):
        folders = [folder for folder in (os.environ.get(name), os.path.join(prefix, below)) if folder]
        os.environ[name] = os.pathsep.join(folders)


def _encryption() -> dict[str, Any]:
    """Kernels print through ports of this host, which other users may share: encrypted, where Jupyter can do it."""
    manager: Any = importlib.import_module("jupyter_client.manager")
    if not hasattr(manager.KernelManager, "transport_encryption") or not manager.zmq.has("curve"):
        return {}
    return {"KernelManager": {"transport_encryption": "auto"}}


def _shell() -> str:
    """The shell of this user, for terminals."""
    import pwd

    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:  # a user by number, whom the image does not know
        shell = ""
    return shell or "/bin/bash"


if __name__ == "__main__":
    main()
