"""A dump of another cluster's database as a source of `det import`: in a PostgreSQL of its own, which goes with it.

A dump is a program: SQL that another user wrote. Its role owns nothing but that database, and psql obeys none of its
commands (`\\restrict`).
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import IO

from determined.errors import DeterminedException

_MIB, _GIB = 2**20, 2**30
#: Where Debian and Ubuntu have the programs, a folder for each version.
_PROGRAMS = Path("/usr/lib/postgresql")
#: Of a disk that a dump never fills.
_LEFT_FREE = 1 * _GIB
#: Seconds between two looks at the disk.
_LOOKS_EVERY_S = 0.5
_START_S = 60.0
_CUSTOM, _GZIP = b"PGDMP", b"\x1f\x8b"
_COPY = re.compile(rb"COPY .+ FROM stdin;\s*")
#: What a dump says of the server that it was of: other owners and rights, psql's own commands, newer settings.
_LEFT_OUT = re.compile(
    rb"\\(un)?restrict [A-Za-z0-9]+\s*$|\\connect |ALTER .+ OWNER TO .+;\s*$|(GRANT|REVOKE) .+;\s*$"
    rb"|COMMENT ON EXTENSION |SET (transaction_timeout|default_table_access_method) = "
)
_USER = "importer"


def is_dump(source: str) -> bool:
    """Whether a source is a file, and no address."""
    return "://" not in source


@contextlib.contextmanager
def served(path: Path, *, reachable_at: str = "", most_gib: int = 200) -> Generator[str]:
    """Restore a dump into a temporary PostgreSQL on this host. Both are gone at the end.

    Args:
        path: Of what pg_dump wrote: SQL, SQL with gzip, or its custom format.
        reachable_at: Name of this host for the orchestrator; empty: it runs on this host, and no other is answered.
        most_gib: That it may take on disk, below $TMPDIR.

    Yields: Its address. Raises: DeterminedException.
    """
    kind = _kind_of(path)
    programs = {name: _program(name) for name in ("initdb", "postgres", "psql")}
    if kind == "custom":
        programs["pg_restore"] = _program("pg_restore")
    with tempfile.TemporaryDirectory(prefix="det-import-") as name:
        folder = Path(name)
        password = secrets.token_hex(16)
        port = _free_port()
        with _server(folder, programs, password, port, is_open=bool(reachable_at)):
            _restore(folder, path, kind, programs, password, port, most_gib * _GIB)
            yield f"postgresql://{_USER}:{password}@{reachable_at or '127.0.0.1'}:{port}/old"


def _kind_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except OSError as error:
        raise DeterminedException(f"--from {path}: {error.strerror}: expected postgresql://… or a dump") from None
    if start.startswith(_CUSTOM):
        return "custom"
    if start.startswith(_GZIP):
        return "gzip"
    if b"PostgreSQL database dump" in start:
        return "sql"
    raise DeterminedException(
        f"--from {path}: it is no dump: expected what `pg_dump` or `pg_dump -Fc` writes of one database"
    )


def _program(name: str) -> str:
    """Path of a program of PostgreSQL, of the newest version that is installed."""
    for folder in sorted(_PROGRAMS.glob("*/bin"), key=lambda path: _number(path.parent.name), reverse=True):
        if (folder / name).exists():
            return str(folder / name)
    found = shutil.which(name)
    if found is None:
        raise DeterminedException(
            f"--from a dump needs the program {name!r} on this host: install PostgreSQL (`apt-get install postgresql`),"
            " or restore the dump elsewhere and name that: --from postgresql://…"
        )
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _unprivileged() -> int | None:
    """PostgreSQL refuses to run as root: the user it runs as then."""
    if os.name != "posix" or os.geteuid() != 0:
        return None
    import pwd

    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    raise DeterminedException("PostgreSQL does not run as root: call `det` as another user")


# -- the server --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _server(folder: Path, programs: dict[str, str], password: str, port: int, *, is_open: bool) -> Generator[None]:
    user = _unprivileged()
    secret, data = folder / "password", folder / "data"
    secret.write_text(password)
    for path in (folder, secret) if user is not None else ():
        os.chown(path, user if user is not None else -1, -1)
    made = subprocess.run(
        [programs["initdb"], "-D", data, "-U", "postgres", "--pwfile", secret, "-A", "scram-sha-256", "-E", "UTF8",
         "--no-locale", "--no-sync"],
        user=user, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        raise DeterminedException(f"initdb: {_tail(made.stderr)}")
    if is_open:
        with (data / "pg_hba.conf").open("a") as file:
            file.write(f"host old {_USER} all scram-sha-256\n")
    settings = ("fsync=off", "full_page_writes=off", "autovacuum=off", "max_wal_size=256MB", "wal_level=minimal",
                "max_wal_senders=0", "ssl=off")  # fmt: skip
    line = [programs["postgres"], "-D", str(data), "-p", str(port), "-k", str(folder)]
    line += ["-h", "*" if is_open else "127.0.0.1"]
    line += [word for setting in settings for word in ("-c", setting)]
    log = folder / "log"
    with log.open("wb") as file:
        # a session of its own: Ctrl-C is for `det`, which ends the import before its source
        process = subprocess.Popen(
            line, user=user, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    try:
        deadline = time.monotonic() + _START_S
        while b"ready to accept" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise DeterminedException(f"postgres: {_tail(log.read_bytes())}")
            time.sleep(0.05)
        yield
    finally:
        process.send_signal(signal.SIGINT)  # it waits for no client
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tail(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "it said nothing"


# -- what is restored --------------------------------------------------------------------------------------------------


def _restore(
    folder: Path, path: Path, kind: str, programs: dict[str, str], password: str, port: int, most: int
) -> None:
    psql = [programs["psql"], "-X", "-q", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(port)]
    make = f"CREATE ROLE {_USER} LOGIN PASSWORD '{password}'; CREATE DATABASE old OWNER {_USER}".split("; ")
    environment = {**os.environ, "PGPASSWORD": password, "PGOPTIONS": "", "PGPASSFILE": os.devnull}
    commands = [word for statement in make for word in ("-c", statement)]
    made = subprocess.run([*psql, "-U", "postgres", "-d", "postgres", *commands], env=environment,
                          stdin=subprocess.DEVNULL, capture_output=True, check=False)  # fmt: skip
    if made.returncode:
        raise DeterminedException(f"psql: {_tail(made.stderr)}")
    with (folder / "said").open("w+b") as said, contextlib.ExitStack() as opened:
        lines = opened.enter_context(_opened(path, kind, programs, said))
        process = subprocess.Popen([*psql, "-U", _USER, "-d", "old"], env=environment, stdin=subprocess.PIPE,
                                   stdout=subprocess.DEVNULL, stderr=said)  # fmt: skip
        full: list[str] = []
        with _ended_if_full(process, folder / "data", most, full):
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as sink:
                sink.write(f"\\restrict {secrets.token_hex(16)}\n".encode())
                for piece in kept(_pieces(lines)):
                    sink.write(piece)
            code = process.wait()
        if full:
            raise DeterminedException(full[0])
        if code:
            said.seek(0)
            raise DeterminedException(f"--from {path}: it can't be restored: {_tail(_errors(said.read(_MIB)))}")


@contextlib.contextmanager
def _ended_if_full(process: subprocess.Popen[bytes], data: Path, most: int, full: list[str]) -> Generator[None]:
    """A process that is killed when the data become more than they may be, and why; it ends with the block anyhow."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOKS_EVERY_S):
            reason = _too_large(data, most)
            if reason:
                full.append(reason)
                process.kill()
                return

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
        process.kill()
        process.wait()


def _errors(said: bytes) -> bytes:
    """What was said first counts: what comes after follows from it."""
    first = [line for line in said.splitlines() if b"ERROR" in line or b"error" in line or b"invalid" in line]
    if first and rb"\restrict" in first[0]:
        return b"psql is too old: expected 13.22, 14.19, 15.14, 16.10, 17.6 or later, which can be told to obey no dump"
    return first[0] if first else said


@contextlib.contextmanager
def _opened(path: Path, kind: str, programs: dict[str, str], said: IO[bytes]) -> Generator[IO[bytes]]:
    """The SQL of a dump."""
    if kind == "gzip":
        with gzip.open(path) as file:
            yield file  # pyright: ignore[reportReturnType] - it reads as others do
    elif kind == "sql":
        with path.open("rb") as file:
            yield file
    else:
        command = [programs["pg_restore"], "--no-owner", "--no-privileges", "-f", "-", str(path)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said)
        try:
            assert process.stdout is not None
            with process.stdout as file:
                yield file
            if process.wait():
                raise DeterminedException(f"--from {path}: pg_restore can't read it")
        finally:
            process.kill()
            process.wait()


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    """Lines; of those that are longer than 1 MiB, pieces."""
    try:
        while piece := file.readline(_MIB):
            yield piece
    except (EOFError, OSError, zlib.error) as error:
        raise DeterminedException(f"the dump can't be read to its end: {error}") from None


def kept(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Of a dump what is of the database, without what is of the server that it was on."""
    is_data, is_start = False, True
    for piece in pieces:
        begins, is_start = is_start, piece.endswith(b"\n")
        if is_data:
            is_data = not (begins and piece.rstrip(b"\r\n") == b"\\.")
            yield piece
        elif not begins:
            yield piece
        elif _LEFT_OUT.match(piece) is None:
            is_data = _COPY.fullmatch(piece) is not None
            yield piece


def _too_large(data: Path, most: int) -> str:
    """Why what was restored is more than it may be; empty if it is not."""
    size = 0
    for path in data.rglob("*"):
        with contextlib.suppress(OSError):  # tables come and go
            size += path.lstat().st_size
    if size > most:
        return (
            f"the dump takes more than {most / _GIB:g} GiB: give --max-gib, or restore it into a PostgreSQL elsewhere"
        )
    if shutil.disk_usage(data).free < _LEFT_FREE:
        return f"{data.parent.parent} is full: set TMPDIR to a folder on a larger disk"
    return ""
