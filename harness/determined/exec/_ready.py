"""What notebooks, shells and TensorBoards share: a server beside us, and the word to the master that it answers.

The server listens on 127.0.0.1 only; the tunnel of this container brings users to it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time

from determined import errors
from determined._fail import fail, say
from determined.common.api._session import Session
from determined.common.api._tls import Cert
from determined.common.api._url import api_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Callable

    from determined.exec._environment import TaskEnvironment

HOST = "127.0.0.1"
# Between two looks whether the server answers.
_LOOK_S = 0.1
_WARNING_S = 60.0
_AGAIN_S = 5.0
# How long a server that was asked to end may take.
_END_S = 10.0


def session_of(env: TaskEnvironment) -> Session:
    """Requests to the master in the name of this container's allocation; each is tried once."""
    return Session(env.master, allocation_token=env.session_token, cert=Cert(env.cert_file, env.cert_name), max_tries=1)


def port_of(variable: str) -> int:
    """The port that the environment variable names. Ends the process if it is none, or if another program has it."""
    text = os.environ.get(variable, "")
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:6]) < 65536:
        fail(f"the environment variable {variable} is {text!r}, but must be a port from 1 to 65535")
    port = int(text)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as e:
            fail(f"{variable} is {port}, but this container can't listen there: {e.strerror}")
    return port


def private_folder(env: TaskEnvironment, name: str) -> str:
    """A folder below DET_RUN_DIR, made if needed, that only this user may read: what is in it is secret."""
    path = os.path.join(os.path.abspath(env.run_dir), name)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        os.chmod(path, 0o700)
    except OSError as e:
        fail(f"can't make the folder {path}: {e.strerror}; DET_RUN_DIR must be writable")
    return path


def write_private(path: str, content: str) -> None:
    """Write a file that only this user may read."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as f:
        os.fchmod(f.fileno(), 0o600)
        f.write(content)


def answers(port: int, path: str) -> bool:
    """Whether a web server of this container answers a GET without an error. Never by way of a proxy."""
    import http.client

    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < 400
    except (OSError, http.client.HTTPException):
        return False  # it still starts; if it has ended, its exit status says so
    finally:
        connection.close()


def serve(
    env: TaskEnvironment,
    argv: list[str],
    is_ready: Callable[[], bool],
    environ: Mapping[str, str] | None = None,
    when_ready: Callable[[], None] = lambda: None,
    facts: Mapping[str, Any] | None = None,
) -> int:
    """Run a server to its end, and tell the master once it is ready.

    A signal that asks this process to end is passed on, so that the server ends in order.

    Args:
        env: Of this container.
        argv: The server's command.
        is_ready: Asked several times a second until it is true.
        environ: The server's environment variables; None for those of this process.
        when_ready: Called once, when it is.
        facts: What the master learns of it besides that it is ready.

    Returns:
        Its exit status, as a shell has it.
    """
    try:
        server = subprocess.Popen(argv, env=None if environ is None else dict(environ), stdin=subprocess.DEVNULL)
    except OSError as e:
        fail(f"can't start {argv[0]}: {e.strerror}")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: _end(server, number))
    threading.Thread(
        target=_tell_when_ready, args=(env, server, is_ready, when_ready, facts or {}), daemon=True
    ).start()
    status = server.wait()
    return status if status >= 0 else 128 - status


def _end(server: subprocess.Popen[bytes], number: int) -> None:
    # Jupyter asks back at the first SIGINT; SIGTERM ends all three at once.
    del number
    server.terminate()
    timer = threading.Timer(_END_S, server.kill)
    timer.daemon = True
    timer.start()


def _tell_when_ready(
    env: TaskEnvironment,
    server: subprocess.Popen[bytes],
    is_ready: Callable[[], bool],
    when_ready: Callable[[], None],
    facts: Mapping[str, Any],
) -> None:
    began, warned_at = time.monotonic(), 0.0
    while not is_ready():
        if server.poll() is not None:
            return
        waited_s = time.monotonic() - began
        if waited_s - warned_at > _WARNING_S:
            warned_at = waited_s
            say("WARNING", f"the {env.task_type.lower()} does not answer yet, after {waited_s:.0f} s")
        time.sleep(_LOOK_S)
    when_ready()
    tell_ready(env, facts)


def tell_ready(env: TaskEnvironment, facts: Mapping[str, Any] | None = None) -> None:
    """Tell the master that this task does its work now, as often as it takes. What it refuses is said."""
    body = dict(facts or {})
    session, told = session_of(env), False
    while True:
        try:
            session.post(api_path("allocations", env.allocation_id, "ready"), json=body)
            return
        except errors.APIException as e:
            if 400 <= e.status < 500 and e.status not in (408, 429):
                say("ERROR", f"the master does not take that this task is ready: {e.message}")
                return
            if not told:
                told = True
                say(
                    "WARNING",
                    f"the master does not know yet that this task is ready, which is tried again: {e.message}",
                )
            time.sleep(_AGAIN_S)


def get_json(port: int, path: str, headers: Mapping[str, str]) -> Any:
    """What a web server of this container answers.

    Raises:
        OSError: It does not answer, or with an error, or with what is no JSON.
    """
    import http.client
    import json

    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise OSError(f"GET {path.partition('?')[0]} was answered with status {answer.status}")
        return json.loads(body)
    except (http.client.HTTPException, ValueError) as e:
        raise OSError(f"GET {path.partition('?')[0]}: {type(e).__name__}: {e}") from e
    finally:
        connection.close()
