"""The embedded cluster: Temporal, API, orchestrator and one agent on this machine, one command.

`python -m workers.embedded up|down|status`; `det up`, `det down` and `det deploy local …` call it. Everything is kept
under one data folder, `UNDETERRED_HOME`.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

if __name__ == "__main__":
    gc.disable()  # as in `workers.processes.loading`, which is loaded below

    # Ctrl-C while the rest is loaded, which takes most of a second

    def _leave(*_: object) -> None:
        os.write(2, b"interrupted: nothing was done yet\n")
        os._exit(130)

    signal.signal(signal.SIGINT, _leave)

import argparse
import asyncio
import contextlib
import fcntl
import http.client
import json
import re
import secrets
import shutil
import socket
import ssl
import time
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from activities.launchers.devices import Device, NoSuchDevices, devices_of_host
from activities.launchers.environments import NoSuchPython, choose_trial_python, has_image, how_to_build, look_at
from api.pem import CantUse
from api.settings import ApiSettings, SignOnSettings, TemporalSettings
from determined.common.api import Cert
from determined.common.api._certs import CertStore
from workers import own_certificate
from workers.own_certificate import Served
from workers.processes import Process, holder_of_port
from workers.secret_environment import take
from workers.settings import host_limits
from workers.stopped import sentences
from workers.temporal_server import NoTemporal, command, find_or_get, unhashed

if __name__ == "__main__":
    gc.enable()

_EVERYWHERE = ("0.0.0.0", "::")
_HOST_NAME = re.compile(r"[A-Za-z0-9:]([A-Za-z0-9._:-]{0,251}[A-Za-z0-9])?")
_READY_WITHIN_S = 60.0
_SOCKETS_CLOSE_S = 1.0
#: Temporal's dev server looks for free ports for its own services, and listens there later. On a busy machine an
#: outgoing connection has one of them by then now and again, and the server ends.
_TEMPORAL_STARTS = 3
_PORT_WAS_TAKEN = "address already in use"
#: What all parts get from the environment of `det up`, if it is set.
_TEMPORAL_SETTINGS = [f"UNDETERRED_{name.upper()}" for name in TemporalSettings.model_fields]
#: What the API gets as well.
_SIGN_ON_SETTINGS = [f"UNDETERRED_{name.upper()}" for name in SignOnSettings.model_fields]
DEFAULT_IMAGE: str = ApiSettings.model_fields["trial_image"].default


class ClusterError(Exception):
    """The cluster can't be started or stopped. The message says why and what to do."""


class ClusterState(BaseModel):
    """What the data folder remembers of the cluster, in `cluster.json` (0600: it holds the agents' token)."""

    format: int = 1
    port: int
    temporal_address: str = ""
    temporal_port: int = 0
    ui_port: int = 0
    host: str = ""  # where other hosts reach it, if they may
    gateway_port: int = 0
    proxy_port: int = 0  # for the pages of tasks
    launcher: str = "process"
    trial_python: str = ""  # of process trials
    trial_image: str = DEFAULT_IMAGE  # of trials in Docker that name none
    slots: int
    slot_type: str = "auto"
    storage_path: str = ""  # of checkpoints, where a configuration names no storage; empty: in the data folder
    cluster_name: str = "undeterred"
    tls: Literal["", "made", "given"] = ""  # the certificate that all is served with: of our own making, or the user's
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_ca_file: str = ""
    tls_names: list[str] = Field(default_factory=list[str])  # of this host, besides those that it knows of
    agent_id: str
    agent_token: str = Field(default_factory=lambda: secrets.token_hex(32))
    is_initialized: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether other hosts reach it, and may become agents."""
        return any(host not in ("", "127.0.0.1", "localhost", "::1") for host in self.host.split(","))

    @property
    def scheme(self) -> str:
        """By which the API is reached."""
        return "https" if self.tls else "http"

    @property
    def parts(self) -> list[str]:
        """The names of its processes."""
        wanted = {"temporal": bool(self.temporal_port), "gateway": self.is_shared}
        return [name for name in ("temporal", "api", "orchestrator", "gateway", "agent") if wanted.get(name, True)]

    def listens_at(self, network: str | None) -> str:
        """The addresses of the API: of this machine, of the containers' network, and that for other hosts."""
        if self.host in _EVERYWHERE:
            return self.host
        return ",".join(dict.fromkeys(filter(None, ["127.0.0.1", network, *self.host.split(",")])))


def home() -> Path:
    """The data folder."""
    configured = os.environ.get("UNDETERRED_HOME")
    if configured:
        return Path(configured).expanduser().resolve()
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "undeterred"


class Cluster:
    """An embedded cluster in a data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._state_file = folder / "cluster.json"
        self._served: Served | None = None  # what it serves with, once that is known

    def process(self, name: str) -> Process:
        """One of its processes."""
        return Process(name, self.folder)

    # -- up ---------------------------------------------------------------------------------------------------------

    def up(self, wanted: argparse.Namespace) -> None:
        """Start what does not run, wait until all of it answers, and say where it is. Raises: ClusterError."""
        began = time.monotonic()
        self._make_folder()
        with self._locked():
            state = self._load() or self._new_state(wanted)
            self._apply(state, wanted)
            self._check_ports(state)
            network = _docker_gateway() if state.launcher == "docker" else None
            self._served = self._certificate(state, network)
            self._save(state)
            password = self._start(state, wanted, network)
            with ThreadPoolExecutor(1) as looking:  # the trials' Python is asked while the parts start
                where = looking.submit(list, _where_trials_run(state))
                self._wait(state)
            self._greet(state, password, time.monotonic() - began, where.result())
            if not state.is_initialized:  # only now: the password was shown
                state.is_initialized = True
                self._save(state)
                (self.folder / "first-password").unlink(missing_ok=True)

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self.folder.stat().st_mode & 0o077:
                self.folder.chmod(0o700)
                _say(f"{self.folder} was open to other users of this machine; it is closed to them now")
            for database in self.folder.glob("*.db*"):
                with contextlib.suppress(FileNotFoundError):  # a database that is closed meanwhile removes its log
                    database.chmod(0o600)
            probe = self.folder / f".probe-{os.getpid()}"  # the lock is taken later: another `det up` may be here too
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ClusterError(
                f"the data folder {self.folder} can't be written: {error.strerror}. Set UNDETERRED_HOME to another."
            ) from None

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ClusterError(f"another `det up` or `det down` works on {self.folder}: wait for it") from None
            yield

    def _load(self) -> ClusterState | None:
        try:
            text = self._state_file.read_text()
        except FileNotFoundError:
            return None
        try:
            state = ClusterState.model_validate_json(text)
        except ValidationError:
            raise ClusterError(
                f"{self._state_file} can't be read: it is damaged, or of another version. Your data is untouched. "
                f"Move the file away to start with a new one, or set UNDETERRED_HOME to another folder."
            ) from None
        if state.format != 1:
            raise ClusterError(
                f"{self.folder} was written by a newer version (format {state.format}, this one knows 1): upgrade, "
                "or set UNDETERRED_HOME to another folder."
            )
        return state

    def _save(self, state: ClusterState) -> None:
        partial = self._state_file.with_suffix(".tmp")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(state.model_dump_json(indent=2))
        os.replace(partial, self._state_file)

    def _new_state(self, wanted: argparse.Namespace) -> ClusterState:
        host = "".join(c if c.isalnum() or c in "-_." else "-" for c in socket.gethostname()).strip("-.") or "host"
        return ClusterState(
            port=8080,
            slots=len(devices_of_host("auto", None)),
            agent_id=f"{host}-1",
            cluster_name=wanted.cluster_name or "undeterred",
        )

    def _apply(self, state: ClusterState, wanted: argparse.Namespace) -> None:
        """Options and environment win over what was remembered."""
        port = wanted.master_port or os.environ.get("UNDETERRED_PORT")
        if port:
            port = _port("UNDETERRED_PORT", str(port))
            if port != state.port and self.process("api").pid() is not None:
                raise ClusterError(f"the API runs on port {state.port}: `det down` first to move it to {port}")
            state.port = port
        slots = wanted.slots
        if wanted.slot_type and wanted.slot_type != state.slot_type and slots is None:
            slots = len(_devices(wanted.slot_type, None))
        self._change(state, "slot_type", wanted.slot_type, "agent")
        self._change(state, "slots", slots, "agent")
        self._change(state, "storage_path", _storage(wanted.storage_path), "api")
        self._change(state, "launcher", wanted.launcher, "agent")
        self._change(state, "trial_image", os.environ.get("UNDETERRED_TRIAL_IMAGE"), "api")
        self._apply_trial_python(state)
        self._apply_tls(state, wanted)
        state.host = wanted.host or os.environ.get("UNDETERRED_HOST") or state.host
        if state.is_shared and not state.gateway_port:
            state.gateway_port = _free_port(
                _port("UNDETERRED_GATEWAY_PORT", os.environ.get("UNDETERRED_GATEWAY_PORT") or "8090")
            )
        pages = os.environ.get("UNDETERRED_PROXY_PORT")
        if pages and self.process("api").pid() is None:
            state.proxy_port = _port("UNDETERRED_PROXY_PORT", pages)
        elif not state.proxy_port:
            state.proxy_port = _free_port(min(state.port + 1, 65535))
        external = os.environ.get("TEMPORAL_ADDRESS", "")
        if external:
            state.temporal_address, state.temporal_port, state.ui_port = external, 0, 0
        elif not state.temporal_port:
            state.temporal_port = _free_port(
                _port("UNDETERRED_TEMPORAL_PORT", os.environ.get("UNDETERRED_TEMPORAL_PORT") or "7233")
            )
            state.ui_port = _free_port(
                _port("UNDETERRED_TEMPORAL_UI_PORT", os.environ.get("UNDETERRED_TEMPORAL_UI_PORT") or "8233")
            )
            state.temporal_address = f"127.0.0.1:{state.temporal_port}"

    def _change(self, state: ClusterState, name: str, wanted: Any, part: str) -> None:
        """Take a value that a part gets at its start; one that runs would go on with the old one, unseen."""
        known = getattr(state, name)
        if wanted in (None, "", known):
            return
        if self.process(part).pid() is not None:
            raise ClusterError(
                f"{name.replace('_', ' ')}: the cluster runs with {known}: `det down` first, to change it to {wanted}"
            )
        setattr(state, name, wanted)

    def _apply_tls(self, state: ClusterState, wanted: argparse.Namespace) -> None:
        files = {
            name: os.path.abspath(path)
            if (path := getattr(wanted, name) or os.environ.get(f"UNDETERRED_{name.upper()}"))
            else ""
            for name in ("tls_cert_file", "tls_key_file", "tls_ca_file")
        }
        if bool(files["tls_cert_file"]) != bool(files["tls_key_file"]):
            raise ClusterError("tls_cert_file and tls_key_file: expected both or neither of them")
        if files["tls_ca_file"] and not files["tls_cert_file"]:
            raise ClusterError("tls_ca_file: expected with tls_cert_file and tls_key_file")
        kind = state.tls
        if wanted.tls is not None:
            kind = "made" if wanted.tls else ""
        if files["tls_cert_file"]:
            if wanted.tls is False:
                raise ClusterError("tls_cert_file: expected none with --no-tls")
            kind = "given"
        if wanted.tls_name:
            if kind != "made":
                raise ClusterError("tls_name: expected with --tls, for the certificate that the cluster makes")
            state.tls_names = sorted({*state.tls_names, *map(_host_name, wanted.tls_name)})
        if kind != state.tls and self.process("api").pid() is not None:
            words = {"": "without TLS", "made": "with TLS", "given": "with TLS, by a certificate of yours"}
            raise ClusterError(f"the cluster runs {words[state.tls]}: `det down` first, to change it")
        state.tls = kind
        if kind != "given":
            files = dict.fromkeys(files, "")
        elif not files["tls_cert_file"]:
            return
        for name, path in files.items():
            setattr(state, name, path)

    def _certificate(self, state: ClusterState, network: str | None) -> Served | None:
        """What this cluster serves with, made where it lacks one. Raises: ClusterError."""
        if not state.tls:
            return None
        try:
            if state.tls == "given":
                return own_certificate.given(state.tls_cert_file, state.tls_key_file, state.tls_ca_file or None)
            own = [host for host in state.host.split(",") if host and host not in _EVERYWHERE]
            names = {*own_certificate.names_of_host(), *state.tls_names, *own, *filter(None, [network])}
            return own_certificate.made(self.folder / "tls", names)
        except (CantUse, OSError, ValueError) as error:
            raise ClusterError(str(error)) from None

    def _apply_trial_python(self, state: ClusterState) -> None:
        """An agent can be restarted at any time: what runs goes on, and what starts later takes the new Python."""
        before = state.trial_python
        try:
            state.trial_python = choose_trial_python(os.environ.get("UNDETERRED_TRIAL_PYTHON"), before)
        except NoSuchPython as error:
            raise ClusterError(str(error)) from None
        agent = self.process("agent")
        if before not in ("", state.trial_python) and agent.pid() is not None:
            agent.stop(10)
            _say(f"trials run in another Python from now on, so the agent is started again; before: {before}")

    def _check_ports(self, state: ClusterState) -> None:
        ports = [("api", state.port, "UNDETERRED_PORT"), ("api", state.proxy_port, "UNDETERRED_PROXY_PORT")]
        if state.temporal_port:
            ports += [
                ("temporal", state.temporal_port, "UNDETERRED_TEMPORAL_PORT"),
                ("temporal", state.ui_port, "UNDETERRED_TEMPORAL_UI_PORT"),
            ]
        if state.is_shared:
            ports.append(("gateway", state.gateway_port, "UNDETERRED_GATEWAY_PORT"))
        for name, port, variable in ports:
            if self.process(name).pid() is None and not _becomes_free(port):
                holder = holder_of_port(port)
                raise ClusterError(
                    f"port {port} is in use{' by ' + holder if holder else ''}: choose another with {variable}"
                )

    def _start(self, state: ClusterState, wanted: argparse.Namespace, network: str | None) -> str | None:
        """Start what does not run; returns the admin's password if this is the first start."""
        database = os.environ.get("UNDETERRED_DATABASE_URL") or f"sqlite:///{self.folder / 'undeterred.db'}"
        base = _environment()
        temporal = _given(*_TEMPORAL_SETTINGS, "UNDETERRED_OTLP_ENDPOINT") | {
            "UNDETERRED_TEMPORAL_ADDRESS": state.temporal_address
        }
        records = {
            "UNDETERRED_DATABASE_URL": database,
            "UNDETERRED_STORAGE_PATH": state.storage_path or str(self.folder / "checkpoints"),
            **_given("UNDETERRED_STORAGE_ROOTS"),
        }
        agent_token = {"UNDETERRED_AGENT_TOKEN": state.agent_token}
        devices = _devices(state.slot_type, state.slots)
        password = None
        first_start: dict[str, str] = {}
        given_password = take("UNDETERRED_ADMIN_PASSWORD")  # or every part would show it in /proc
        if not state.is_initialized:
            password = wanted.initial_user_password or given_password or self._saved_password()
            first_start = {"UNDETERRED_ADMIN_PASSWORD": password}

        if state.temporal_port and self.process("temporal").pid() is None:
            self._start_temporal(state)
        serving, trusting = _serving(self._served), _trusting(self._served)
        outgoing = _given("UNDETERRED_ALLOWED_NETWORKS", "UNDETERRED_OWN_BUCKETS")
        self._start_part(
            "api",
            base | temporal | records | agent_token | first_start | outgoing | serving
            | _given("UNDETERRED_TIMING", "UNDETERRED_ACCESS", "UNDETERRED_PROXY_URL", *_SIGN_ON_SETTINGS)
            | {
                "UNDETERRED_PROXY_PORT": str(state.proxy_port),
                **({"UNDETERRED_TEMPORAL_UI": f"http://localhost:{state.ui_port}"} if state.ui_port else {}),
                "UNDETERRED_TRIAL_IMAGE": state.trial_image,
                "UNDETERRED_PORT": str(state.port),
                "UNDETERRED_HOST": state.listens_at(network),
                "UNDETERRED_GATEWAY": f":{state.gateway_port}" if state.is_shared else "",
                "UNDETERRED_CLUSTER_NAME": state.cluster_name,
            },
        )  # fmt: skip
        given = _given("UNDETERRED_RUNNING_EXPERIMENTS", "UNDETERRED_PROVIDER_FOLDER") | outgoing
        self._start_part("orchestrator", base | temporal | records | given)
        if state.is_shared:
            listens = {
                "UNDETERRED_HOST": state.listens_at(None),
                "UNDETERRED_PORT": str(state.gateway_port),
            }
            self._start_part("gateway", base | temporal | records | listens | serving)
        agent = {
            "UNDETERRED_AGENT_ID": state.agent_id,
            "UNDETERRED_SLOTS": str(state.slots),
            "UNDETERRED_DEVICES": json.dumps([device.model_dump() for device in devices]),
            "UNDETERRED_API_URL": f"{state.scheme}://127.0.0.1:{state.port}",
            "UNDETERRED_FOLDER": str(self.folder / "agent"),
            "UNDETERRED_LAUNCHER": state.launcher,
            "UNDETERRED_TRIAL_PYTHON": state.trial_python,
        }
        if network:
            agent["UNDETERRED_CONTAINER_API_URL"] = f"{state.scheme}://host.docker.internal:{state.port}"
        agent |= (
            trusting
            | outgoing
            | _given(
                "UNDETERRED_CONTAINER_API_URL",
                "UNDETERRED_HEARTBEAT_S",
                "UNDETERRED_RECONNECT_WAIT_S",
                "UNDETERRED_MEMORY_MIB",
            )
        )
        agent |= {f"UNDETERRED_{name.upper()}": text for name, text in host_limits().items()}
        self._start_part("agent", base | temporal | agent_token | agent)
        return password

    def _start_temporal(self, state: ClusterState) -> None:
        try:
            program = find_or_get(_say)
        except NoTemporal as error:
            raise ClusterError(str(error)) from None
        line = command(program, port=state.temporal_port, ui_port=state.ui_port, database=self.folder / "temporal.db")
        folder = self.folder / "run"
        folder.mkdir(parents=True, exist_ok=True)
        with unhashed(program, folder) as file:
            self.process("temporal").start(line, _environment(), file)

    def _saved_password(self) -> str:
        """Kept until the first start is complete, so that an interrupted one does not leave an unknown password."""
        path = self.folder / "first-password"
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(10))
        return path.read_text()

    def _start_part(self, name: str, environment: dict[str, str]) -> None:
        process = self.process(name)
        if process.pid() is None:
            process.run_module(f"workers.{name}", environment)

    def _wait(self, state: ClusterState) -> None:
        deadline = time.monotonic() + _READY_WITHIN_S
        waiting = set(state.parts)
        starts = 1
        while waiting:
            for name in state.parts:
                process = self.process(name)
                if process.pid() is None:
                    if name != "temporal" or starts == _TEMPORAL_STARTS or _PORT_WAS_TAKEN not in process.last_lines():
                        raise ClusterError(
                            f"{name} ended right after its start; the end of {process.log}:\n{process.last_lines()}"
                        )
                    starts += 1
                    waiting.add(name)
                    self._start_temporal(state)
                elif name in waiting and self._answers(name, state):
                    waiting.remove(name)
            if waiting and time.monotonic() > deadline:
                late = sorted(waiting, key=state.parts.index)
                logs = ", ".join(str(self.process(name).log) for name in late)
                raise ClusterError(f"{', '.join(late)} did not answer within {_READY_WITHIN_S:g} s; see {logs}")
            if waiting:
                time.sleep(0.03)

    def _answers(self, name: str, state: ClusterState) -> bool:
        if name == "temporal":
            return not _is_free(state.temporal_port)
        if name == "api":
            connection = _connection(state.port, self._served)
            try:
                connection.request("GET", "/info")
                return connection.getresponse().status == 200
            except ssl.SSLCertVerificationError as error:
                raise ClusterError(
                    f"tls_cert_file: {state.tls_cert_file!r}: this machine does not trust it: {error.verify_message}: "
                    "put the certificate of its authority at the file's end, or name its file by --tls-ca-file"
                ) from None
            except (OSError, http.client.HTTPException):
                return False
            finally:
                connection.close()
        return self.process(name).ready_file.exists()

    def _greet(self, state: ClusterState, password: str | None, seconds: float, where_trials_run: list[str]) -> None:
        _say(f"Undeterred is up after {seconds:.1f} s ({state.slots} slots).")
        url = f"{state.scheme}://{(self._served and self._served.name) or 'localhost'}:{state.port}"
        _say(f"  Web UI       {url}/det/")
        _say(f"  API          {url}   (REST: {url}/docs/rest-api)")
        if self._served is not None:
            _say(f"  det          export DET_MASTER={url}")
            self._trust(url, self._served)
        if state.ui_port:
            _say(f"  Temporal UI  http://localhost:{state.ui_port}")
        if state.is_shared:
            _say(f"  other hosts  join through port {state.gateway_port}: `det agent join-token create` says how")
        for label, line in zip(("trials", *[""] * 9), where_trials_run, strict=False):
            _say(f"  {label:12} {line}")
        _say(f"  data, logs   {self.folder}")
        if password is not None:
            if not _login(state, url, self._served, password):
                _say("  these records were here before: log in with `det user login`, passwords are unchanged")
                return
            if (self.folder / "first-password").exists():
                _say(f"  admin's password, shown once: {password}")
            _say("  the local `det` is logged in as admin")

    def _trust(self, url: str, served: Served) -> None:
        """Have the `det` of this user trust what is served, and say how other programs do."""
        _say(f"  certificate  {served.cert_file}, until {served.ends:%Y-%m-%d}")
        if served.ca_file is not None:
            CertStore().set(url, Path(served.ca_file).read_text())
            _say(f"  authority    {served.ca_file}: for browsers, and in DET_MASTER_CERT_FILE for det elsewhere")

    # -- down -------------------------------------------------------------------------------------------------------

    def down(self, *, deletes_records: bool = False) -> None:
        """Stop everything, what runs included, and say what becomes of that after `up`.

        With `deletes_records` nothing comes of it: all records go, and checkpoints stay.

        Raises: ClusterError.
        """
        if deletes_records and "UNDETERRED_DATABASE_URL" in os.environ:
            raise ClusterError("UNDETERRED_DATABASE_URL: the records are in a database of your own: drop it there")
        state = self._load() if self.folder.exists() else None
        if state is None:
            _say(f"nothing runs in {self.folder}")
            return
        with self._locked():
            self.process("agent").stop(10)
            stopped = asyncio.run(_stop_containers(self.folder, state))
            for name in ("gateway", "orchestrator", "api", "temporal"):
                self.process(name).stop(15)
            if deletes_records:
                self._delete_records(state)
                return
        _say("stopped. `det up` takes up what waits.")
        for sentence in sentences(stopped):
            _say(f"  {sentence}")

    def _delete_records(self, state: ClusterState) -> None:
        for path in (*self.folder.glob("undeterred.db*"), *self.folder.glob("temporal.db*"), self._state_file):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.folder / "agent", ignore_errors=True)
        checkpoints = state.storage_path or str(self.folder / "checkpoints")
        _say(f"stopped, and all records are deleted. Checkpoints stay: {checkpoints}")

    def status(self) -> int:
        """Say what runs; 0 if all of it does."""
        state = self._load() if self.folder.exists() else None
        if state is None:
            _say(f"there is no cluster in {self.folder}: start one with `det up`")
            return 1
        pids = {name: self.process(name).pid() for name in state.parts}
        for name, pid in pids.items():
            _say(f"{name:13} {'runs, pid ' + str(pid) if pid else 'does not run':20} {self.process(name).log}")
        for label, line in zip(("trials", *[""] * 9), _where_trials_run(state), strict=False):
            _say(f"{label:13} {line}")
        return 0 if all(pids.values()) else 1


async def _stop_containers(folder: Path, state: ClusterState) -> list[Mapping[str, str]]:
    """End all that runs; the labels of it."""
    from activities.launchers.base import Launcher, LaunchError
    from activities.launchers.docker import DockerLauncher, owner_of
    from activities.launchers.process import ProcessLauncher

    launcher: Launcher
    if state.launcher == "docker":
        launcher = DockerLauncher(owner_of(state.agent_id, folder / "agent"))
    else:
        launcher = ProcessLauncher(folder / "agent" / "containers")
    try:
        running = [status for status in await launcher.list() if status.running]
        await asyncio.gather(*(launcher.kill(status.container_id, 3.0) for status in running))
    except LaunchError as error:
        _say(f"containers could not be stopped: {error}")
        return []
    return [status.labels for status in running]


def _where_trials_run(state: ClusterState) -> Iterator[str]:
    """By which launcher trials run and with what, and the command that mends what lacks there."""
    if state.launcher == "docker":
        yield f"run in Docker, in the image {state.trial_image} unless they name one"
        if has_image(state.trial_image) is False:
            yield f"which this host does not have; to do: {how_to_build(state.trial_image)}"
        return
    yield f"run as processes, in {state.trial_python}"
    try:
        found = look_at(state.trial_python)
    except NoSuchPython as error:
        yield f"{error}; to do: set UNDETERRED_TRIAL_PYTHON for `det up`"
        return
    what, fix = found.problem()
    if what:
        yield f"{what}; to do: {fix}"
    elif state.trial_python == sys.executable:
        yield "the cluster's own Python; to do: `make install` makes one for trials, UNDETERRED_TRIAL_PYTHON names it"


def _devices(kind: str, count: int | None) -> list[Device]:
    try:
        return devices_of_host(kind, count)
    except NoSuchDevices as error:
        raise ClusterError(str(error)) from None


def _storage(path: str | None) -> str | None:
    """A folder for checkpoints, made if it is not there. Raises: ClusterError."""
    if not path:
        return None
    folder = Path(path).expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(f"the folder for checkpoints {folder} can't be made: {error.strerror}") from None
    return str(folder)


def _docker_gateway() -> str | None:
    """The address of this host on the containers' network, which the API must listen on too."""
    from activities.launchers.base import LaunchError
    from activities.launchers.docker import DockerLauncher

    try:
        return asyncio.run(DockerLauncher("probe").gateway())
    except LaunchError as error:
        raise ClusterError(f"the Docker launcher can't work: {error}") from None


def _serving(served: Served | None) -> dict[str, str]:
    """Settings of a process that serves: its certificate."""
    if served is None:
        return {}
    return {"UNDETERRED_TLS_CERT_FILE": served.cert_file, "UNDETERRED_TLS_KEY_FILE": served.key_file}


def _trusting(served: Served | None) -> dict[str, str]:
    """Settings of an agent: what it checks the API's certificate by."""
    if served is None:
        return {}
    found = {"UNDETERRED_API_CA_FILE": served.ca_file, "UNDETERRED_API_SERVER_NAME": served.name}
    return {name: text for name, text in found.items() if text}


def _connection(port: int, served: Served | None) -> http.client.HTTPConnection:
    if served is None:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    context = Cert(served.ca_file, served.name or None).context()
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=1, context=context)


def _host_name(text: str) -> str:
    if _HOST_NAME.fullmatch(text) is None:
        raise ClusterError(f"tls_name: {text!r}: expected a host name or an address, such as det.example.org")
    return text.lower()


def _login(state: ClusterState, url: str, served: Served | None, password: str) -> bool:
    """Log the local `det` in; False if admin has another password, as the records are older than this folder."""
    from determined.common.api import authentication
    from determined.errors import ForbiddenException, UnauthenticatedException

    cert = None if served is None else Cert(served.ca_file, served.name or None)
    try:  # by this machine's own address: a name in the certificate need not lead here yet
        token = authentication.request_token(f"{state.scheme}://localhost:{state.port}", "admin", password, cert)
    except (ForbiddenException, UnauthenticatedException):
        return False
    authentication.TokenStore().set(url, "admin", token)
    return True


def _becomes_free(port: int) -> bool:
    """Whether nobody listens, at once or soon: what was killed just now is gone before its sockets are."""
    deadline = time.monotonic() + _SOCKETS_CLOSE_S
    while not (free := _is_free(port)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return free


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _environment() -> dict[str, str]:
    """What every part gets of the environment of `det up`: what is no setting."""
    base = {key: value for key, value in os.environ.items() if not key.startswith(("UNDETERRED_", "DET_"))}
    return base | {"PYTHONUNBUFFERED": "1"}


def _given(*names: str) -> dict[str, str]:
    """Those of these settings that are set in the environment of `det up`."""
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def _port(variable: str, value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= 65535:
        raise ClusterError(f"{variable}: {value!r}: expected a port number from 1 to 65535")
    return int(value)


def _free_port(wanted: int) -> int:
    for port in range(wanted, wanted + 200):
        if _is_free(port):
            return port
    raise ClusterError(f"no free port from {wanted} to {wanted + 199}")


def _say(text: str) -> None:
    try:
        print(text, flush=True)  # noqa: T201
    except BrokenPipeError:  # `det up | head -1`: what is begun is done to its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="det", description="The embedded cluster on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the cluster, or what of it does not run")
    up.add_argument("--master-port", type=int, help="port of the API (default 8080, or UNDETERRED_PORT)")
    up.add_argument("--slots", type=int, help="slots that this machine offers (default: its cores)")
    up.add_argument(
        "--slot-type", choices=["auto", "cuda", "cpu"], help="what slots are (default: its GPUs, else cores)"
    )
    up.add_argument("--storage-path", help="folder for checkpoints (default: in the data folder)")
    up.add_argument("--launcher", choices=["process", "docker"], help="how trials are run (default: process)")
    up.add_argument("--host", help="address to listen on for other hosts as well, such as 0.0.0.0")
    up.add_argument(
        "--tls", action=argparse.BooleanOptionalAction, help="serve by TLS, with a certificate of the cluster's own"
    )
    up.add_argument("--tls-name", action="append", default=[], help="a further name of this host, for that certificate")
    up.add_argument("--tls-cert-file", help="serve by TLS, with this certificate (PEM)")
    up.add_argument("--tls-key-file", help="private key (PEM) of that certificate")
    up.add_argument("--tls-ca-file", help="authority behind that certificate (default: the last one in its file)")
    up.add_argument("--cluster-name", help="name shown to clients")
    up.add_argument("--initial-user-password", help="password of admin on the first start")
    down = commands.add_parser("down", help="stop the cluster")
    down.add_argument("--delete-records", action="store_true", help="and delete all of its records")
    commands.add_parser("status", help="show what runs")
    options = parser.parse_args(arguments)
    cluster = Cluster(home())
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if options.command == "up":
            cluster.up(options)
        elif options.command == "down":
            cluster.down(deletes_records=options.delete_records)
        else:
            return cluster.status()
    except ClusterError as error:
        print(str(error), file=sys.stderr, flush=True)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        print("interrupted. `det up` goes on from here, `det down` stops what runs.", file=sys.stderr)  # noqa: T201
        return 130
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # To take down all that is loaded, object by object, takes half a second, and nobody is to be told.
    os._exit(status)
