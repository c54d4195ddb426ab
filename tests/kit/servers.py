"""Real servers for tests: a Docker engine, a PostgreSQL server, the trial image. What starts here is stopped here."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import psutil
from sqlalchemy import create_engine, make_url, text

from workers.temporal_server import command, find_or_get, unhashed

REPOSITORY = Path(__file__).resolve().parents[2]
TRIAL_IMAGE = "undeterred/trial:dev"


@contextlib.contextmanager
def docker_engine() -> Generator[str]:
    """A Docker engine at the usual socket; started, and stopped afterwards, if none answers. Yields its DOCKER_HOST."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if _docker_answers():
        yield host
        return
    dockerd = _program("dockerd", "docker.io")
    with tempfile.TemporaryDirectory(prefix="dockerd-") as folder, Path(folder, "log").open("w+") as log:
        # A pid file of its own: one that a killed engine left names a process that may be anybody's by now.
        command_line = [dockerd, "--pidfile", f"{folder}/pid"]
        process = subprocess.Popen(
            command_line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            _wait_for("dockerd", process, _docker_answers, Path(folder, "log"), 60.0)
            yield host
        finally:
            _stop(process, signal.SIGTERM, 30.0)


@contextlib.contextmanager
def postgres_server() -> Generator[str]:
    """A PostgreSQL server of its own: own data, port and password, durable as by default.

    Yields: Its URL, `postgresql+psycopg://…`, of a superuser and the database `postgres`.
    """
    with restartable_postgres() as server:
        yield server.url


class Postgres:
    """A PostgreSQL server that can be killed and started again on the same data."""

    def __init__(self, folder: Path, url: str, command: list[str], user: int | None) -> None:
        self.url = url
        self.options: list[str] = []  # further ones of its command line
        self._folder = folder
        self._command = command
        self._user = user
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns when it answers."""
        with self._log.open("w") as log:
            process = self._process = subprocess.Popen(
                [*self._command, *self.options],
                user=self._user,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # The socket answers during recovery too, this line is written when queries are answered.
        _wait_for("postgres", process, lambda: "ready to accept" in self._log.read_text(), self._log, 60.0)

    @contextlib.contextmanager
    def copy(self) -> Generator[Postgres]:
        """Start it and a standby that follows it; the standby is stopped after the block."""
        parts, port = make_url(self.url), free_port()
        options, self.options = self.options, []
        self.start()  # what has it wait for a standby would have the copy wait as well
        with tempfile.TemporaryDirectory(prefix="postgres-") as name:
            folder = Path(name)
            if self._user is not None:
                os.chown(folder, self._user, -1)
            subprocess.run(
                [postgres_program("pg_basebackup"), "-D", folder / "data", "-R", "-X", "stream", "-c", "fast",
                 "-h", "127.0.0.1", "-p", str(parts.port), "-U", str(parts.username)],
                user=self._user, cwd=folder, check=True, env=os.environ | {"PGPASSWORD": str(parts.password)},
            )  # fmt: skip
            line = [postgres_program("postgres"), "-D", str(folder / "data"), "-p", str(port), "-h", "127.0.0.1"]
            standby = Postgres(
                folder,
                parts.set(port=port).render_as_string(hide_password=False),
                [*line, "-k", str(folder)],
                self._user,
            )
            try:
                standby.start()
                self.stop()
                self.options = options
                self.start()
                yield standby
            finally:
                standby.stop()

    def kill(self) -> None:
        """SIGKILL to the server and all its sessions: what is committed is on disk."""
        assert self._process is not None
        server = psutil.Process(self._process.pid)
        for process in (server, *server.children(recursive=True)):  # its sessions have process groups of their own
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop it in order, sessions or not."""
        if self._process is not None:
            _stop(self._process, signal.SIGINT, 30.0)  # "fast": ends the sessions


#: Memory that the system shows as a folder, and how much must be free for a server that keeps its files there.
_MEMORY = Path("/dev/shm")
_MEMORY_NEEDED = 4 << 30


def folder_in_memory() -> str | None:
    """Where files can be kept in memory; None where there is no room."""
    is_there = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_NEEDED
    return str(_MEMORY) if is_there else None


@contextlib.contextmanager
def restartable_postgres(*settings: str, place: str | None = None) -> Generator[Postgres]:
    """As `postgres_server`. Yields the server.

    Args:
        settings: Of the server, `name=value`.
        place: Where its folder is made; default the system's for temporary files.
    """
    programs = {name: postgres_program(name) for name in ("initdb", "postgres")}
    user = _unprivileged_user()
    with tempfile.TemporaryDirectory(prefix="postgres-", dir=place) as name:
        folder = Path(name)
        if user is not None:
            os.chown(folder, user, -1)
        password = secrets.token_hex(16)
        password_file = folder / "password"
        password_file.write_text(password)
        if user is not None:
            os.chown(password_file, user, -1)
        data = folder / "data"
        options = ["-U", "postgres", "--pwfile", password_file, "-A", "scram-sha-256", "-E", "UTF8", "--no-locale"]
        subprocess.run(
            [programs["initdb"], "-D", data, *options],
            user=user,
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        port = free_port()
        line = [programs["postgres"], "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", str(folder)]
        line += [word for setting in settings for word in ("-c", setting)]
        url = f"postgresql+psycopg://postgres:{password}@127.0.0.1:{port}/postgres"
        server = Postgres(folder, url, line, user)
        try:
            server.start()
            yield server
        finally:
            server.stop()


class Replicated:
    """Two PostgreSQL servers: each commit of the first waits until the second has it.

    Attributes:
        url: Of whichever takes writes.
        primary: The first.
        standby: The second; readable, and the same but for the moment that a commit is on its way.
    """

    def __init__(self, primary: Postgres, standby: Postgres) -> None:
        self.primary, self.standby = primary, standby
        first, second = make_url(primary.url), make_url(standby.url)
        hosts = [f"{parts.host}:{parts.port}" for parts in (first, second)]
        query = {"host": hosts, "target_session_attrs": "read-write"}
        url = first._replace(host=None, port=None).update_query_dict(query)
        self.url = url.render_as_string(hide_password=False)

    def fail_over(self) -> None:
        """The first server dies, the second takes its place; returns when it takes writes."""
        self.primary.kill()
        engine = create_engine(self.standby.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT pg_promote()"))
        engine.dispose()


@contextlib.contextmanager
def replicated_postgres() -> Generator[Replicated]:
    """A PostgreSQL server and a standby that has all that is committed."""
    with restartable_postgres() as primary:
        primary.stop()
        primary.options = ["-c", "synchronous_standby_names=*", "-c", "synchronous_commit=on"]
        with primary.copy() as standby:
            yield Replicated(primary, standby)


@contextlib.contextmanager
def pgbouncer(url: str, *, connections: int) -> Generator[str]:
    """A PgBouncer in transaction mode before a PostgreSQL server. Yields the URL that goes through it.

    Args:
        url: Of the server.
        connections: To the server; clients take turns on them, transaction by transaction.
    """
    parts, port, user = make_url(url), free_port(), _unprivileged_user()
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as name:
        folder = Path(name)
        accounts, settings, log_path = (folder / file for file in ("userlist.txt", "pgbouncer.ini", "log"))
        accounts.write_text(f'"{parts.username}" "{parts.password}"\n')
        settings.write_text(
            f"[databases]\n* = host={parts.host} port={parts.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = scram-sha-256\nauth_file = {accounts}\n"
            f"pool_mode = transaction\ndefault_pool_size = {connections}\nmax_client_conn = 500\n"
        )
        if user is not None:
            for path in (folder, accounts, settings):
                os.chown(path, user, -1)
        with log_path.open("w") as log:
            process = subprocess.Popen(
                [pgbouncer_program(), str(settings)],
                user=user,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                _wait_for("pgbouncer", process, lambda: "process up" in log_path.read_text(), log_path, 60.0)
                yield parts.set(port=port).render_as_string(hide_password=False)
            finally:
                _stop(process, signal.SIGTERM, 30.0)


@contextlib.contextmanager
def temporal_server(folder: Path, *settings: str) -> Generator[str]:
    """A Temporal dev server with its file in `folder`, tuned as the embedded one. Yields its address.

    Args:
        folder: Must exist.
        settings: Further dynamic configuration, `key=value`.
    """
    port = free_port()
    program = find_or_get(print)
    line = command(program, port=port, ui_port=0, database=folder / "temporal.db", durable=False)
    line += [word for setting in settings for word in ("--dynamic-config-value", setting)]
    log_path = folder / "temporal.log"
    with log_path.open("w") as log:
        with unhashed(program, folder) as file:
            process = subprocess.Popen(
                line, executable=file, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            _wait_for("temporal", process, lambda: "Server:" in log_path.read_text(), log_path, 60.0)
            yield f"127.0.0.1:{port}"
        finally:
            _stop(process, signal.SIGKILL, 30.0)  # in order it takes a second, and nobody reads its file again


def trial_image(venv: Path | None = None) -> str:
    """Name of the trial image, built from this host's own Python: one of yesterday has yesterday's harness.

    A run of tests builds it once, whichever of its processes needs it first, and again if it is gone by then.

    Args:
        venv: Virtual environment whose packages go into it; default the one beside the repository's own.
    """
    venv = venv or REPOSITORY / ".venv-trial"
    run = f"{os.environ.get('PYTEST_XDIST_TESTRUNUID') or os.getpid()} {venv} "
    with Path(tempfile.gettempdir(), f"undeterred-image-{os.getuid()}.lock").open("a+") as built:
        fcntl.flock(built, fcntl.LOCK_EX)
        built.seek(0)
        if (here := _id_of_image(TRIAL_IMAGE)) and built.read() == run + here:
            return TRIAL_IMAGE
        script = REPOSITORY / "deploy" / "images" / "build-local.sh"
        options = ["-e", str(venv)] if venv.is_dir() else []
        subprocess.run([script, "-t", TRIAL_IMAGE, *options], check=True, stdout=subprocess.DEVNULL)
        built.truncate(0)
        built.write(run + _id_of_image(TRIAL_IMAGE))
    return TRIAL_IMAGE


def _id_of_image(name: str) -> str:
    """Empty: the engine has none of that name."""
    line = ["docker", "image", "inspect", "--format", "{{.Id}}", name]
    return subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()


def faketime_library() -> str:
    """The library that shows a process another time of day, for LD_PRELOAD."""

    def find() -> str | None:
        return next((str(path) for path in Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)

    return _program("libfaketime", "faketime", find)


def registry_program() -> str:
    """The registry of the Distribution project."""
    return _program("docker-registry", "docker-registry")


@contextlib.contextmanager
def running_server(name: str, line: list[str], folder: Path, is_ready: Callable[[], bool]) -> Generator[None]:
    """A server that is ready when the block begins, and is killed when it ends. Its log is in the folder."""
    log_path = folder / "log"
    with log_path.open("w") as log:
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_for(name, process, is_ready, log_path, 60.0)
            yield
        finally:
            _stop(process, signal.SIGKILL, 30.0)


def pgbouncer_program() -> str:
    """PgBouncer, of Debian's package."""
    return _program("pgbouncer", "pgbouncer", lambda: shutil.which("pgbouncer", path=f"{os.defpath}:/usr/sbin"))


def ssh_server_program() -> str:
    """OpenSSH's server."""
    return _program("sshd", "openssh-server", lambda: shutil.which("sshd", path="/usr/sbin:/usr/local/sbin"))


def ssh_program() -> str:
    """OpenSSH's client."""
    return _program("ssh", "openssh-client")


def systemd_analyze_program() -> str:
    """What checks units of systemd; none needs to run."""
    return _program("systemd-analyze", "systemd")


def perf_program() -> str:
    """perf, which samples what any process does."""
    return _program("perf", "linux-perf")


def haproxy_program() -> str:
    """A load balancer."""
    return _program("haproxy", "haproxy", lambda: shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin"))


def container_programs() -> None:
    """What a node of Kubernetes runs containers with: containerd, which brings runc, and iptables."""
    for name, package in (
        *(("containerd", "containerd"), ("containerd-shim-runc-v2", "containerd"), ("ctr", "containerd")),
        *(("runc", "runc"), ("iptables", "iptables"), ("ip", "iproute2")),
    ):
        _program(name, package)


def cni_plugins() -> str:
    """The folder of the plugins that connect pods to each other."""

    def find() -> str | None:
        folders = ("/usr/lib/cni", "/opt/cni/bin")
        return next((folder for folder in folders if Path(folder, "bridge").exists()), None)

    return _program("bridge of the CNI plugins", "containernetworking-plugins", find)


def ip_program() -> str:
    """The program that makes networks for hosts of tests."""
    return _program("ip", "iproute2")


def environment_of_a_part(settings: Mapping[str, str]) -> dict[str, str]:
    """What a process of the platform gets: these settings, and of this process' environment what is no setting."""
    return {key: value for key, value in os.environ.items() if not key.startswith("UNDETERRED_")} | dict(settings)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody has now, another one at each call.

    It lies below the ports that the system gives to outgoing connections: a port among those is taken now and then
    before the server that is to have it listens, or while it is restarted.
    """
    lowest, end = _own_ports()
    for _ in range(end - lowest):
        port = lowest + next(_ports) % (end - lowest)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port from {lowest} to {end - 1}")


# Each process begins somewhere else: two runs at once seldom meet.
_ports = itertools.count(secrets.randbelow(15_000))


def _own_ports() -> tuple[int, int]:
    """The first port, and the one behind the last, that this worker of a run may give; others have others."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    lowest, end = 14_000, min(29_000, _first_ephemeral_port())  # from 29400 on lie those that trials agree on
    size = (end - lowest) // count
    return lowest + worker * size, lowest + (worker + 1) * size


def _first_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except FileNotFoundError:
        return 49152  # macOS


def _docker_answers() -> bool:
    if not shutil.which("docker"):
        return False
    return subprocess.run(["docker", "version"], capture_output=True, check=False).returncode == 0


def postgres_program(name: str) -> str:
    """Path of a program of PostgreSQL, of the newest version that is installed."""

    def find() -> str | None:
        folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))
        return next((str(folder / name) for folder in folders if (folder / name).exists()), shutil.which(name))

    return _program(name, "postgresql", find)


def _program(name: str, package: str, find: Callable[[], str | None] | None = None) -> str:
    """Path of a program, installed by apt if it is missing and we may."""
    look = find or (lambda: shutil.which(name))
    found = look()
    if not found and os.geteuid() == 0 and shutil.which("apt-get"):
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "-y", "--no-install-recommends", package]):
            subprocess.run(["apt-get", *command], env=env, check=True, stdout=subprocess.DEVNULL)
        found = look()
    if not found:
        raise RuntimeError(
            f"these tests need the program {name!r}, and it is not on PATH; install it (`apt-get install {package}`)."
        )
    return found


def _unprivileged_user() -> int | None:
    """PostgreSQL refuses to run as root: whom it runs as then."""
    if os.geteuid() != 0:
        return None
    import pwd

    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    raise RuntimeError("no user 'postgres' or 'nobody' to run PostgreSQL as; add one (`useradd postgres`).")


def _wait_for(
    name: str, process: subprocess.Popen[bytes], is_ready: Callable[[], bool], log: Path, limit_s: float
) -> None:
    deadline = time.monotonic() + limit_s
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = log.read_text()[-2000:]
            raise RuntimeError(f"{name} was not ready within {limit_s:g} s (exit code {process.poll()}):\n{tail}")
        time.sleep(0.05)


def _stop(process: subprocess.Popen[bytes], number: signal.Signals, limit_s: float) -> None:
    if process.poll() is None:
        process.send_signal(number)
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def chromium_program() -> str:
    """Path of Chromium."""
    return _program("chromium", "chromium")


#: Each gets a program that this module starts, unless it is there.
PROGRAMS: tuple[Callable[[], object], ...] = (
    lambda: find_or_get(print),
    lambda: _program("dockerd", "docker.io"),
    lambda: postgres_program("postgres"),
    pgbouncer_program,
    faketime_library,
    container_programs,
    cni_plugins,
    haproxy_program,
    ip_program,
    registry_program,
    ssh_program,
    ssh_server_program,
    chromium_program,
)
