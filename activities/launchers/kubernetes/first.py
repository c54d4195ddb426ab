"""The first process of a pod's container: it starts the container's program, and ends when that has ended.

Run as `python -c <this file> FOLDER` by the interpreter of the image, so it keeps to what Python 3.7 knows. FOLDER is a
mounted Secret: `common` has what all containers of the allocation have in common, and a file named after the index of
the pod in its Job has the rest. It is here, and not in the Job, because there are tokens in it.

SIGTERM comes from our own agent, from a node that is drained, or from a queue that wants the room. The master says
which it is. One that hangs gets SIGUSR1 before, upon which the harness shows what its threads are doing. For all but
the agent the program is asked to leave first, as if it were preempted by its pool, and has `leave_s` for a checkpoint.
Then SIGTERM is passed on, and after `grace_s` all that still runs in the container is killed.

What the harness could not deliver before its end waits on the pod's disk, which goes with the pod. So it is delivered
from here, however long the API is away; only a pod that is to end waits no longer than `grace_s`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The longest that the master may take to answer, and how long a program gets to show its stacks.
_ASK_S, _STACKS_S = 3.0, 3.0
_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}


def main(folder: str) -> int:
    """Run the program; returns the container's exit code."""
    order = _order(folder)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    for folder in order["folders"]:
        os.makedirs(folder, exist_ok=True)
    env = {**os.environ, **order["env"]}
    if "DET_AGENT_ID" in env:  # to the harness, an agent is a node
        env["DET_AGENT_ID"] = os.environ["DET_KUBERNETES_NODE"]
    try:
        child = subprocess.Popen(
            order["argv"],
            env=env,
            cwd=order["workdir"],
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS),
        )
    except OSError as error:
        sys.stderr.write(f"ERROR: undeterred: {order['argv'][0]} can't be executed: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126
    code, is_leaving = _follow(child.pid, order, env)
    if os.getpid() == 1:
        _end_all_others()
    _deliver(env, order["grace_s"] if is_leaving else None)
    return code


def _order(folder: str) -> Any:
    order: Any = {}
    for name in ("common", os.environ.get("JOB_COMPLETION_INDEX", "0")):
        with open(os.path.join(folder, name)) as file:
            part = json.load(file)
        order = {**order, **part, "env": {**order.get("env", {}), **part["env"]}}
    return order


def _follow(pid: int, order: Any, env: dict[str, str]) -> tuple[int, bool]:
    """Wait for the program; returns its exit code, 128+n if signal n ended it, and whether it was asked to leave."""
    end_at: float | None = None
    kill_at: float | None = None
    is_leaving = False
    while True:
        found = _reap(pid)
        if found is not None:
            return found, is_leaving
        now = time.monotonic()
        if end_at is not None and now >= end_at:
            _signal_all(pid, signal.SIGTERM)
            end_at, kill_at = None, now + order["grace_s"]
        if kill_at is not None and now >= kill_at:
            _signal_all(pid, signal.SIGKILL)
            kill_at = None
        times = [at for at in (end_at, kill_at) if at is not None]
        got = signal.sigtimedwait(_SIGNALS, max(0.0, min(times) - now) if times else 3600.0)
        if got is not None and got.si_signo == signal.SIGTERM and not is_leaving:
            is_leaving = True
            answer = _ask(env)
            wait_s = order["leave_s"] if answer.get("isKilled") is False else 0.0
            if answer.get("hangs") and _catches(pid, signal.SIGUSR1):
                os.kill(pid, signal.SIGUSR1)
                wait_s = _STACKS_S
            end_at = time.monotonic() + wait_s


def _ask(env: dict[str, str]) -> Any:
    """Have the master ask the program to leave, unless it is killed. Empty: the master can't be reached."""
    master, allocation = env.get("DET_MASTER", ""), env.get("DET_ALLOCATION_ID", "")
    if not master or env.get("DET_TASK_TYPE") != "TRIAL":
        return {}
    request = urllib.request.Request(
        f"{master}/api/v1/allocations/{allocation}/signals/pending_preemption",
        data=b"{}",
        headers={
            "Grpc-Metadata-x-allocation-token": f"Bearer {env.get('DET_SESSION_TOKEN', '')}",
            "Content-Type": "application/json",
        },
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=_ASK_S) as answer:
            found = json.load(answer)
            is_asked = found.get("isKilled") is False
    except (OSError, ValueError, AttributeError) as error:
        sys.stderr.write(f"WARNING: undeterred: this pod has to leave, and the master does not answer: {error}\n")
        return {}
    if is_asked:
        sys.stderr.write("INFO: undeterred: the cluster ends this pod; its program is asked to leave\n")
        sys.stderr.flush()
    return found


def _catches(pid: int, number: int) -> bool:
    """Whether the program has a handler for a signal: without one it would end by it."""
    try:
        with open(f"/proc/{pid}/status") as file:
            caught = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
    except OSError:
        return False
    return bool(int(caught, 16) >> (number - 1) & 1)


def _reap(pid: int) -> int | None:
    """The exit code of the program if it has ended. As the container's first process this one has orphans too."""
    code = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if ended == 0:
            return code
        if ended == pid:
            code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _signal_all(pid: int, number: int) -> None:
    try:
        if number == signal.SIGKILL and os.getpid() == 1:
            os.kill(-1, number)  # all that runs in the container, whatever group it is in
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        pass


def _end_all_others() -> None:
    """The program has ended: what it left running ends as well, before the container's last lines are read."""
    try:
        os.kill(-1, signal.SIGKILL)
        while os.waitpid(-1, 0)[0]:
            pass
    except OSError:  # there is nobody left
        pass


def _deliver(env: dict[str, str], limit_s: float | None) -> None:
    """Deliver what waits on disk: within a limit, or however long the API is away."""
    folder = env.get("DET_SPOOL_DIR", "")
    if not _waits(folder):
        return
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        subprocess.call([sys.executable, "-m", "determined.exec.deliver"], env=env, timeout=limit_s)
    except subprocess.TimeoutExpired:
        sys.stderr.write("WARNING: undeterred: the last reports could not be delivered before the pod had to leave\n")


def _waits(folder: str) -> bool:
    try:
        return any(name.endswith(".spool") for name in os.listdir(folder))
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
