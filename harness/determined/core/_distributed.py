"""Which worker of a job this process is, and how the workers exchange objects."""

from __future__ import annotations

import os
import sys
import threading

from determined import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from determined.core._hub import Hub
    from determined.core._spoke import Spoke

PUB_PORT = 12360
PULL_PORT = 12376
# How long the workers wait for each other, in seconds. In a collective one may be busy with an evaluation or an upload
# meanwhile; a worker that is gone is noticed by its connection, long before.
_MEETING_S = ("DET_GANG_TIMEOUT_S", 600.0)
_COLLECTIVE_S = ("DET_COLLECTIVE_TIMEOUT_S", 6 * 3600.0)
_TOKEN = "DET_DISTRIBUTED_TOKEN"


class DistributedContext:
    """Which worker of a job this process is, and how the workers exchange small objects.

    The workers meet when they construct this: it returns once all `size` are there. After that all of them must make
    the same calls of `gather`, `allgather`, `broadcast` and their local forms, in the same order. Objects are pickled.
    Rank 0, the chief, must be the first worker of the first machine.

    A worker that does not come within 600 s (`DET_GANG_TIMEOUT_S`) is named in an error of all others; so is one that
    ends, goes another way than the others, or keeps them waiting in a call for 6 hours (`DET_COLLECTIVE_TIMEOUT_S`).

    Only workers of this job can take part. They recognize each other by the allocation's token; outside of a cluster by
    `DET_DISTRIBUTED_TOKEN`, or else by a file of this user, which all machines must share.

    Args:
        rank: Index of this worker in the job.
        size: Number of workers in the job.
        local_rank: Index of this worker on its machine.
        local_size: Number of workers on this machine.
        cross_rank: Index of this machine in the job.
        cross_size: Number of machines in the job.
        chief_ip: Address of the worker of rank 0; needed when `cross_size` is above 1.
        pub_port: Not used: one port of the chief is enough for both directions.
        pull_port: Port on which the chief listens, if there are several machines, or with `force_tcp`.
        port_offset: Added to both ports. Ports that you leave as they are follow the cluster:
            `INTER_TRAIN_PROCESS_COMM_PORT_1` and `_2`, or else `DET_UNIQUE_PORT_OFFSET` as their offset.
        force_tcp: Use TCP between the workers of one machine, too, instead of Unix sockets.

    Raises:
        ValueError: The numbers contradict each other.
        DistributedError: Not all workers came, two contradict each other, or the port is taken.
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        local_rank: int,
        local_size: int,
        cross_rank: int,
        cross_size: int,
        chief_ip: str | None = None,
        pub_port: int = PUB_PORT,
        pull_port: int = PULL_PORT,
        port_offset: int = 0,
        force_tcp: bool = False,
    ) -> None:
        for name, index, count in (
            ("rank", rank, size),
            ("local_rank", local_rank, local_size),
            ("cross_rank", cross_rank, cross_size),
        ):
            if count < 1 or not 0 <= index < count:
                size_name = name.replace("rank", "size")
                raise ValueError(f"{name} is {index} and {size_name} is {count}, but must be 0 <= {name} < {size_name}")
        if cross_size > 1 and not chief_ip:
            raise ValueError(
                f"cross_size is {cross_size}, so chief_ip must be given (or DET_CHIEF_IP set) to the address of rank 0"
            )
        if cross_size == 1 and (rank, size) != (local_rank, local_size):
            raise ValueError(
                f"rank is {rank} of {size} and local_rank is {local_rank} of {local_size}, but must be the same, "
                "because there is one machine (cross_size is 1)"
            )
        if rank == 0 and (local_rank or cross_rank):
            raise ValueError(
                f"rank is 0, local_rank {local_rank} and cross_rank {cross_rank}, but rank 0 must be the first worker "
                "of the first machine"
            )
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.cross_rank = cross_rank
        self.cross_size = cross_size
        self.chief_ip = chief_ip
        self.pub_port, self.pull_port = _ports(pub_port, pull_port, port_offset)
        self.force_tcp = force_tcp
        # ZeroMQ's sockets are not made for several threads.
        self._lock = threading.RLock()
        self._groups: list[Hub | Spoke] = []
        self._global: Hub | Spoke | None = None
        self._local: Hub | Spoke | None = None
        self._finish: Callable[[], Any] | None = None
        if size > 1:
            self._meet()

    @classmethod
    def from_horovod(cls, hvd: Any, chief_ip: str | None = None) -> DistributedContext:
        """From the module that you imported, for example `horovod.torch`; call its `init()` first."""
        return cls(
            rank=hvd.rank(),
            size=hvd.size(),
            local_rank=hvd.local_rank(),
            local_size=hvd.local_size(),
            cross_rank=hvd.cross_rank(),
            cross_size=hvd.cross_size(),
            chief_ip=chief_ip or os.environ.get("DET_CHIEF_IP"),
        )

    @classmethod
    def from_deepspeed(cls, chief_ip: str | None = None) -> DistributedContext:
        """From what deepspeed's launcher sets: RANK WORLD_SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE."""
        return cls._from_env(
            ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"), "deepspeed", chief_ip
        )

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> DistributedContext:
        """From what torchrun sets: RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE."""
        return cls._from_env(
            ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
            "torchrun",
            chief_ip,
        )

    @classmethod
    def from_tf_config(cls) -> tuple[DistributedContext, Any]:
        """From `TF_CONFIG`, which `determined.launch.tensorflow` sets, and TensorFlow's strategy that goes with it.

        Without `TF_CONFIG` there is one worker. The strategy is `MultiWorkerMirroredStrategy` for several workers,
        `MirroredStrategy` for one with several GPUs, and else TensorFlow's default one.

        Raises:
            ImportError: TensorFlow is not installed.
            ValueError: `TF_CONFIG` is none that this can be.
        """
        import importlib

        try:
            tensorflow = importlib.import_module("tensorflow")
        except ImportError as e:
            raise ImportError(
                "DistributedContext.from_tf_config() needs tensorflow, which is not installed here: pip install "
                "tensorflow",
                name="tensorflow",
            ) from e
        rank, hosts = _tf_config(os.environ.get("TF_CONFIG"))
        chief_ip = os.environ.get("DET_CHIEF_IP") or hosts[0].rpartition(":")[0].strip("[]")
        workers = cls(
            rank=rank,
            size=len(hosts),
            local_rank=0,
            local_size=1,
            cross_rank=rank,
            cross_size=len(hosts),
            chief_ip=chief_ip,
        )
        if workers.size > 1:
            return workers, tensorflow.distribute.MultiWorkerMirroredStrategy()
        if len(tensorflow.config.list_physical_devices("GPU")) > 1:
            return workers, tensorflow.distribute.MirroredStrategy()
        return workers, tensorflow.distribute.get_strategy()

    @classmethod
    def _from_env(cls, names: tuple[str, ...], launcher: str, chief_ip: str | None) -> DistributedContext:
        values: list[int] = []
        for name in names:
            text = os.environ.get(name)
            if text is None or not text.strip().isdigit():
                raise errors.NotLaunchedError(
                    f"the environment variable {name} is {'not set' if text is None else repr(text)}, but must be a "
                    f"number; start this script with {launcher}, or construct DistributedContext(rank=…) yourself"
                )
            values.append(int(text))
        rank, size, local_rank, local_size, cross_rank, cross_size = values
        return cls(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            cross_rank=cross_rank,
            cross_size=cross_size,
            chief_ip=chief_ip or os.environ.get("DET_CHIEF_IP"),
        )

    def _meet(self) -> None:
        import weakref

        import zmq

        from determined.core._spoke import Spoke

        limits = {"meeting_s": _seconds(*_MEETING_S), "collective_s": _seconds(*_COLLECTIVE_S)}
        key = _key()
        context = zmq.Context()
        # Also at the end of the process, when nobody calls close(): what was sent last must still arrive.
        self._finish = weakref.finalize(self, _close, context, self._groups, os.getpid())
        try:
            ports: dict[str, int] = {}
            own_local = self.cross_size > 1 and self.local_size > 1
            if own_local and self.local_rank == 0:
                self._local = self._listen(context, _derived(key, f"local {self.cross_rank}"), local=True, **limits)
                if self.force_tcp:
                    ports = {"local_port": self._local.port}
            about = {**self._numbers(), **ports}
            if self.rank == 0:
                self._global = self._listen(context, key, local=False, about=about, **limits)
                ports = self._global.meet(_contradiction, _local_ports)
            else:
                address = f"tcp://{_bracketed(self.chief_ip or '')}:{self.pull_port}"
                if self.cross_rank == 0:
                    address = f"tcp://127.0.0.1:{self.pull_port}" if self.force_tcp else _unix_name(key, self.pull_port)
                self._global = Spoke(context, key, self.rank, address, about, word="rank", **limits)
                self._groups.append(self._global)
                ports = self._global.meet()
            if self.cross_size == 1:
                self._local = self._global
            elif own_local:
                self._meet_locally(context, _derived(key, f"local {self.cross_rank}"), ports, limits)
        except BaseException:
            self.close()
            raise

    def _listen(self, context: Any, key: bytes, *, local: bool, about: Any = None, **limits: Any) -> Hub:
        from determined.core._hub import Hub

        name = _unix_name(key, self.pull_port)
        if local:
            addresses = ["tcp://127.0.0.1:*" if self.force_tcp else name]
        elif self.cross_size == 1:
            addresses = [f"tcp://127.0.0.1:{self.pull_port}" if self.force_tcp else name]
        else:
            everywhere = "[::]" if ":" in (self.chief_ip or "") else "0.0.0.0"
            addresses = [f"tcp://{everywhere}:{self.pull_port}", *([] if self.force_tcp else [name])]
        size, word = (self.local_size, "local rank") if local else (self.size, "rank")
        hub = Hub(context, key, size, addresses, about or {}, word=word, **limits)
        self._groups.append(hub)
        return hub

    def _meet_locally(self, context: Any, key: bytes, ports: dict[str, int], limits: dict[str, float]) -> None:
        from determined.core._hub import Hub
        from determined.core._spoke import Spoke

        if self.local_rank == 0:
            assert isinstance(self._local, Hub)
            self._local.meet(lambda about: None, lambda about: None)
            return
        address = _unix_name(key, self.pull_port)
        if self.force_tcp:
            address = f"tcp://127.0.0.1:{ports[str(self.cross_rank)]}"
        self._local = Spoke(context, key, self.local_rank, address, {}, word="local rank", **limits)
        self._groups.append(self._local)
        self._local.meet()

    def _numbers(self) -> dict[str, int]:
        names = ("size", "local_rank", "local_size", "cross_rank", "cross_size")
        return {name: getattr(self, name) for name in names}

    def close(self) -> None:
        """Close the connections to the other workers, once what was sent has left. May be called again."""
        if self._finish is not None:
            self._finish()

    def get_rank(self) -> int:
        """`rank`."""
        return self.rank

    def get_local_rank(self) -> int:
        """`local_rank`."""
        return self.local_rank

    def get_size(self) -> int:
        """`size`."""
        return self.size

    def get_num_agents(self) -> int:
        """`cross_size`."""
        return self.cross_size

    def gather(self, stuff: Any) -> list[Any] | None:
        """The `stuff` of every worker by rank on the chief, None on the others, who do not wait for the chief.

        Raises:
            DistributedError: Another worker is gone, or has made another call, or was waited for too long. The same for
                all methods below. After it, nothing more can be exchanged.
        """
        return self._gather(self._global, self.size, stuff)

    def gather_local(self, stuff: Any) -> list[Any] | None:
        """`gather` among the workers of this machine, to the one of `local_rank` 0."""
        return self._gather(self._local, self.local_size, stuff)

    def allgather(self, stuff: Any) -> list[Any]:
        """The `stuff` of every worker by rank, on every worker."""
        return self._allgather(self._global, self.size, self.rank, stuff)

    def allgather_local(self, stuff: Any) -> list[Any]:
        """`allgather` among the workers of this machine, by `local_rank`."""
        return self._allgather(self._local, self.local_size, self.local_rank, stuff)

    def broadcast(self, stuff: Any) -> Any:
        """The chief's `stuff`, on every worker. The chief does not wait for the others."""
        return self._broadcast(self._global, self.size, self.rank, stuff)

    def broadcast_local(self, stuff: Any = None) -> Any:
        """The `stuff` of the worker of `local_rank` 0, on every worker of this machine."""
        return self._broadcast(self._local, self.local_size, self.local_rank, stuff)

    def _gather(self, group: Hub | Spoke | None, size: int, stuff: Any) -> list[Any] | None:
        if size == 1:
            return [stuff]
        from determined.core._frames import GATHER
        from determined.core._hub import Hub

        end = _open(group)
        with self._lock:
            if isinstance(end, Hub):
                return [stuff, *(_unpickled(part) for part in end.collect(end.next(), GATHER))]
            data = _pickled(stuff)
            end.send(end.next(), GATHER, data)
            return None

    def _allgather(self, group: Hub | Spoke | None, size: int, index: int, stuff: Any) -> list[Any]:
        if size == 1:
            return [stuff]
        from determined.core._frames import ALLGATHER
        from determined.core._hub import Hub

        end = _open(group)
        data = _pickled(stuff)
        with self._lock:
            number = end.next()
            if isinstance(end, Hub):
                # As they came: nobody but their receivers need take them apart.
                parts = [data, *end.collect(number, ALLGATHER)]
                end.spread(number, ALLGATHER, parts)
            else:
                end.send(number, ALLGATHER, data)
                parts = end.receive(number, ALLGATHER)
        return [stuff if i == index else _unpickled(part) for i, part in enumerate(parts)]

    def _broadcast(self, group: Hub | Spoke | None, size: int, index: int, stuff: Any) -> Any:
        if size == 1:
            return stuff
        from determined.core._frames import BROADCAST
        from determined.core._hub import Hub

        end = _open(group)
        with self._lock:
            if isinstance(end, Hub):
                data = _pickled(stuff)
                end.spread(end.next(), BROADCAST, [data])
                return stuff
            (part,) = end.receive(end.next(), BROADCAST)
        return _unpickled(part)


class DummyDistributedContext(DistributedContext):
    """A job of one worker."""

    def __init__(self) -> None:
        super().__init__(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)


def _close(context: Any, groups: list[Hub | Spoke], pid: int) -> None:
    if os.getpid() != pid:
        return  # a fork: the connections are its parent's
    for group in reversed(groups):
        group.close()
    groups.clear()
    context.term()


def _open(group: Hub | Spoke | None) -> Hub | Spoke:
    if group is None or group.is_closed:
        raise RuntimeError("this DistributedContext is closed; it ends with the `with core.init()` block")
    return group


def _contradiction(workers: dict[int, dict[str, Any]]) -> str | None:
    """What does not fit together in the numbers of the workers that have come, by rank; None if all does."""
    chief = workers[0]
    places: dict[tuple[int, int], int] = {}
    machines: dict[int, tuple[int, int]] = {}
    for rank, worker in sorted(workers.items()):
        for name in ("size", "cross_size"):
            if worker[name] != chief[name]:
                return f"rank {rank} has {name}={worker[name]}, but rank 0 has {name}={chief[name]}"
        machine = worker["cross_rank"]
        first, local_size = machines.setdefault(machine, (rank, worker["local_size"]))
        if worker["local_size"] != local_size:
            return (
                f"rank {rank} has local_size={worker['local_size']}, but rank {first} of the same machine "
                f"(cross_rank={machine}) has local_size={local_size}"
            )
        place = (machine, worker["local_rank"])
        if place in places:
            return f"ranks {places[place]} and {rank} both have cross_rank={place[0]} and local_rank={place[1]}"
        places[place] = rank
    total = sum(local_size for _, local_size in machines.values())
    if total > chief["size"] or (len(machines) == chief["cross_size"] and total != chief["size"]):
        return f"the machines have {total} workers in all (the sum of local_size), but size is {chief['size']}"
    return None


def _local_ports(workers: dict[int, dict[str, Any]]) -> dict[str, int]:
    return {str(w["cross_rank"]): w["local_port"] for w in workers.values() if "local_port" in w}


def _ports(pub_port: int, pull_port: int, offset: int) -> tuple[int, int]:
    if (pub_port, pull_port, offset) != (PUB_PORT, PULL_PORT, 0):
        return pub_port + offset, pull_port + offset
    names = ("INTER_TRAIN_PROCESS_COMM_PORT_1", "INTER_TRAIN_PROCESS_COMM_PORT_2")
    if all(os.environ.get(name) for name in names):
        pub_port, pull_port = (_number(name) for name in names)
        return pub_port, pull_port
    if os.environ.get("DET_UNIQUE_PORT_OFFSET"):
        offset = _number("DET_UNIQUE_PORT_OFFSET")
    return pub_port + offset, pull_port + offset


def _number(name: str) -> int:
    text = os.environ[name]
    if not text.strip().isdigit():
        raise ValueError(f"the environment variable {name} is {text!r}, but must be a number")
    return int(text)


def _tf_config(text: str | None) -> tuple[int, list[str]]:
    """The rank of this worker, and the addresses of all, by rank; a chief that is named apart is the first."""
    import json

    if not text:
        return 0, ["localhost:0"]
    try:
        config: dict[str, Any] = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        kind, index = task["type"], int(task["index"])
        hosts: list[str] = [*cluster.get("chief", []), *cluster.get("worker", [])]
        rank = index + (len(cluster.get("chief", [])) if kind == "worker" else 0)
        if kind not in ("chief", "worker") or set(cluster) - {"chief", "worker"} or not 0 <= rank < len(hosts):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise ValueError(
            f"the environment variable TF_CONFIG is {text!r}, but must name this task and a cluster of workers, for "
            'example {"cluster": {"worker": ["10.0.0.1:2222"]}, "task": {"type": "worker", "index": 0}}'
        ) from e
    return rank, hosts


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise ValueError(f"the environment variable {name} is {text!r}, but must be a number of seconds above 0")
    return value


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def _unix_name(key: bytes, port: int) -> str:
    name = f"determined-{_derived(key, f'unix {port}').hex()[:32]}"
    if sys.platform == "linux":
        return f"ipc://@{name}"  # in no folder: nothing can be left behind
    import tempfile

    return f"ipc://{os.path.join(tempfile.gettempdir(), name)}"


def _derived(key: bytes, purpose: str) -> bytes:
    import hmac

    return hmac.new(key, purpose.encode(), "sha256").digest()


def _key() -> bytes:
    """What only the workers of this job know."""
    from determined._info import get_cluster_info

    token = os.environ.get(_TOKEN)
    if token:
        return _derived(token.encode(), "distributed")
    info = get_cluster_info()
    if info is not None:
        return _derived(info.session_token.encode(), f"distributed {info.allocation_id}")
    return _derived(_key_of_this_user(), f"distributed {os.environ.get('MASTER_PORT', '')}")


def _key_of_this_user() -> bytes:
    """A secret in a file that only this user can read. The first process that needs it makes it."""
    base = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    path = os.path.join(base, "determined", "distributed.key")
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "wb") as f:
                f.write(os.urandom(32))
            try:
                os.link(temporary, path)  # not a rename: the first one stays
            except FileExistsError:
                pass
            finally:
                os.unlink(temporary)
        with open(path, "rb") as f:
            return f.read()
    except OSError as e:
        raise RuntimeError(
            f"the workers of a job recognize each other by a secret, which can't be kept in {path} ({e.strerror}); "
            f"set {_TOKEN} to the same secret value for all of them"
        ) from e


def _pickled(stuff: Any) -> bytes:
    import pickle

    return pickle.dumps(stuff, pickle.HIGHEST_PROTOCOL)


def _unpickled(frame: Any) -> Any:
    import pickle

    return pickle.loads(getattr(frame, "buffer", frame))
