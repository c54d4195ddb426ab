"""What a container runs: `python -m determined.exec.launch`.

It prepares the container (context, rendezvous, info files, a probe of the checkpoint storage) and then becomes the
entrypoint of a trial, a command or a generic task, or the server of a notebook, shell or TensorBoard. All of it counts
into the time that a trial waits before its first step, so this imports little.
"""

from __future__ import annotations

import os
import sys
import time

from determined import errors
from determined._fail import fail, say
from determined.common.api._retry import Backoff, is_transient
from determined.common.api._session import Session
from determined.common.api._tls import Cert
from determined.common.api._url import api_path
from determined.exec._entrypoint import command_line, execute, resolve, with_startup_hook
from determined.exec._environment import TaskEnvironment, write_info_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from determined.common.api._http import HttpResponse

    T = TypeVar("T")

# A master that is away is waited for as long as it takes: an end would count as a failure of the user's code. One that
# answers with an error of its own, for so long, will not get better.
_SERVER_ERROR_LIMIT_S = 600.0
# The master answers when all containers of the allocation are there.
_RENDEZVOUS_TIMEOUT_S = 120.0
_RENDEZVOUS_ANSWER_S = 60.0
_RENDEZVOUS_WARNING_S = 600.0
_CONTEXT = "the model directory"


def main() -> None:
    """Prepare this container and become the entrypoint."""
    env = TaskEnvironment(os.environ)
    resources: dict[str, Any] = env.config.get("resources") or {}
    if env.is_trial:
        argv = resolve(env.entrypoint, int(resources.get("slots_per_trial") or 1))
    elif env.server_module:
        argv = [sys.executable, "-m", env.server_module]
    else:
        argv = command_line(env.entrypoint)
    master = Session(
        env.master,
        allocation_token=env.session_token,
        cert=Cert(env.cert_file, env.cert_name),
        max_tries=1,  # `_asked` knows for how long to go on
    )
    info_dir = os.path.join(env.run_dir, "info")
    try:
        os.makedirs(info_dir, mode=0o755, exist_ok=True)
        os.makedirs(env.workdir, mode=0o700, exist_ok=True)
        os.chdir(env.workdir)
        _unpack_context(master, env)
        if env.is_trial:
            write_info_file(info_dir, "trial.json", env.trial())
            write_info_file(info_dir, "rendezvous.json", _rendezvous(master, env))
        write_info_file(info_dir, "resources.json", {"gpu_uuids": _gpu_uuids(len(env.slot_ids))})
        # Last, because it is the one that tells that this is a task of the cluster.
        write_info_file(info_dir, "cluster.json", env.cluster())
    except OSError as e:
        fail(f"can't prepare this container: {e.strerror} ({e.filename}); DET_RUN_DIR and DET_WORKDIR must be writable")
    finally:
        master.close()
    if env.is_trial:
        _probe_storage(env.config.get("checkpoint_storage") or {})
        # in these words: tools look for where the code's own output begins
        say("INFO", f"New trial runner in (container {env.resources_id}) on agent {env.agent_id}")
    _enter(env.start_dir)
    if os.environ.get("DET_PROXY_SERVICES"):
        from determined.exec import _services

        _services.start()
    execute(with_startup_hook(argv))


def _enter(folder: str) -> None:
    """Go where the task is to start. The user's names may stand in it as variables."""
    if not folder:
        return
    for name in ("AGENT_USER", "DET_USER"):
        folder = folder.replace(f"${name}", os.environ.get(name) or os.environ.get("DET_USER", ""))
    try:
        os.chdir(folder)
    except OSError as e:
        fail(f"work_dir in the task's configuration is {folder!r}, which can't be entered: {e.strerror}")


def _unpack_context(master: Session, env: TaskEnvironment) -> None:
    path = api_path("tasks", env.task_id, "context_directory")
    answer = _get(master, f"{path}?byStream=true", _CONTEXT)
    packed = str(answer.get("b64Tgz") or "")
    stream_bytes = int(answer.get("streamBytes") or 0)
    if stream_bytes:
        _unpack_stream(master, env, stream_bytes)
    if not packed:
        return
    import binascii

    from determined.common.context import unpack_context

    try:
        unpack_context(binascii.a2b_base64(packed), env.workdir)
    except (errors.InvalidContextException, binascii.Error) as e:
        fail(f"can't unpack the files of this task: {e}")


def _unpack_stream(master: Session, env: TaskEnvironment, size: int) -> None:
    import io

    from determined.common.context import unpack_stream
    from determined.exec._resumed import Resumed

    path = api_path("undeterred", "tasks", env.task_id, "context")
    stream = Resumed(lambda offset: _opened(master, f"{path}?offset={offset}", _CONTEXT, 60.0), size)
    try:
        with io.BufferedReader(stream, 1 << 20) as tar:
            unpack_stream(tar, env.workdir, size)
    except errors.InvalidContextException as e:
        fail(f"can't unpack the files of this task: {e}")


def _rendezvous(master: Session, env: TaskEnvironment) -> dict[str, Any]:
    if env.rendezvous is not None:  # the only container of its allocation: an older API lets it ask
        return _addresses(env.rendezvous)
    # Answered earlier than the client gives up, so that it is said who is missing.
    path = api_path("allocations", env.allocation_id, "resources", env.resources_id, "rendezvous")
    path += f"?timeoutSeconds={_RENDEZVOUS_ANSWER_S:g}"
    answer = _get(master, path, "the addresses of the other containers", _RENDEZVOUS_TIMEOUT_S)
    return _addresses(answer.get("rendezvousInfo") or {})


def _addresses(info: dict[str, Any]) -> dict[str, Any]:
    try:
        return {
            "container_addrs": [str(address) for address in info["addresses"]],
            "container_rank": int(info["rank"]),
            "container_slot_counts": [int(count) for count in info["slots"]],
        }
    except (KeyError, TypeError, ValueError):
        fail(f"the master's rendezvous is {info!r}, but must have addresses, rank and slots")


def _get(master: Session, path: str, what: str, timeout_s: float = 60.0) -> dict[str, Any]:
    return _asked(lambda: master.get(path, timeout_s=timeout_s).json(), what, timeout_s)


def _opened(master: Session, path: str, what: str, timeout_s: float) -> HttpResponse:
    return _asked(lambda: master.open(path, timeout_s=timeout_s), what, timeout_s)


def _asked(ask: Callable[[], T], what: str, timeout_s: float) -> T:
    backoff, started, warned_at = Backoff(), time.monotonic(), 0.0
    while True:
        try:
            return ask()
        except (errors.UnauthenticatedException, errors.ForbiddenException) as e:
            fail(f"the cluster has ended this allocation ({e.message.partition(';')[0]}); nothing was started")
        except errors.APIException as e:
            waited_s = time.monotonic() - started
            slow_answer = "timed out" in e.message and timeout_s == _RENDEZVOUS_TIMEOUT_S
            if not is_transient(e) and e.status < 500:
                fail(f"can't get {what} from the master: {e}")
            if waited_s > _SERVER_ERROR_LIMIT_S and not is_transient(e):
                fail(f"can't get {what} from the master for {waited_s:.0f} s: {e}")
            if waited_s - warned_at > (_RENDEZVOUS_WARNING_S if slow_answer else 60.0 if warned_at else 10.0):
                warned_at = waited_s
                say("WARNING", f"still waiting for {what} after {waited_s:.0f} s: {e.message}")
            time.sleep(backoff.next(e.retry_after_s))


def _probe_storage(config: dict[str, Any]) -> None:
    from determined.common import storage

    try:
        storage.build(config).probe()
    except errors.DeterminedException as e:
        fail(f"checkpoints could not be saved: {e}")


def _gpu_uuids(slots: int) -> list[str]:
    """The GPUs of this container. A number other than that of its slots is reported: two workers may share one."""
    found = _visible_gpus()
    if found and len(found) != slots:
        say("WARNING", f"this container has {slots} slots, but sees {len(found)} GPUs: {', '.join(found)}")
    return found


def _visible_gpus() -> list[str]:
    # Starting nvidia-smi costs up to a second: only where a runtime has handed over devices.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("NVIDIA_VISIBLE_DEVICES") or ""
    if visible in ("", "none", "void", "-1"):
        return []
    import subprocess

    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    uuids = [line.strip() for line in listed.splitlines() if line.strip()]
    wanted = visible.split(",")
    by_index = [uuids[int(w)] for w in wanted if w.isdigit() and int(w) < len(uuids)]
    return by_index or [u for u in uuids if visible == "all" or u in wanted]


if __name__ == "__main__":
    main()
