"""What a task knows about where it runs, read from the files that `determined.exec.launch` wrote."""

from __future__ import annotations

import os

from determined.errors import InvalidConfigurationException

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

DEFAULT_RUN_DIR = "/run/determined"


def info_dir() -> str:
    """The folder of the info files: `$DET_RUN_DIR/info`."""
    return os.path.join(os.environ.get("DET_RUN_DIR") or DEFAULT_RUN_DIR, "info")


class RendezvousInfo:
    """Where the containers of this allocation are, in the order of their ranks."""

    def __init__(self, container_addrs: list[str], container_rank: int, container_slot_counts: list[int]) -> None:
        self.container_addrs = container_addrs
        self.container_rank = container_rank
        self.container_slot_counts = container_slot_counts


class TrialInfo:
    """What is particular to a trial."""

    def __init__(
        self,
        trial_id: int,
        experiment_id: int,
        trial_seed: int,
        hparams: dict[str, Any],
        config: dict[str, Any],
        steps_completed: int,
        trial_run_id: int,
        debug: bool,
        unique_port_offset: int = 0,
        inter_node_network_interface: str | None = None,
    ) -> None:
        self.trial_id = trial_id
        self.experiment_id = experiment_id
        self.trial_seed = trial_seed
        self.hparams = hparams
        self._config = config
        self._steps_completed = steps_completed
        self._trial_run_id = trial_run_id
        self._debug = debug
        self._unique_port_offset = unique_port_offset
        self._inter_node_network_interface = inter_node_network_interface


class ResourcesInfo:
    """The devices of this container."""

    def __init__(self, gpu_uuids: list[str]) -> None:
        self._gpu_uuids = gpu_uuids

    @property
    def gpu_uuids(self) -> list[str]:
        """UUIDs of the GPUs of this container."""
        return self._gpu_uuids


class ClusterInfo:
    """What a task on the cluster knows about itself; get it from `determined.get_cluster_info()`."""

    def __init__(
        self,
        master_url: str,
        cluster_id: str,
        agent_id: str,
        slot_ids: list[int],
        task_id: str,
        allocation_id: str,
        session_token: str,
        task_type: str,
        master_cert_name: str | None = None,
        master_cert_file: str | None = None,
        latest_checkpoint: str | None = None,
        trial_info: TrialInfo | None = None,
        rendezvous_info: RendezvousInfo | None = None,
        resources_info: ResourcesInfo | None = None,
    ) -> None:
        self.master_url = master_url
        self.cluster_id = cluster_id
        self.agent_id = agent_id
        self.slot_ids = slot_ids
        self.task_id = task_id
        self.allocation_id = allocation_id
        self.session_token = session_token
        self.task_type = task_type
        self.master_cert_name = master_cert_name
        self.master_cert_file = master_cert_file
        self._latest_checkpoint = latest_checkpoint
        self._trial_info = trial_info
        self._rendezvous_info = rendezvous_info
        self._resources_info = resources_info

    def __repr__(self) -> str:
        # The session token must not end in a log.
        return f"ClusterInfo(task_type={self.task_type!r}, task_id={self.task_id!r}, master_url={self.master_url!r})"

    @property
    def latest_checkpoint(self) -> str | None:
        """The checkpoint to resume from, or None on a fresh start."""
        return self._latest_checkpoint

    @property
    def user_data(self) -> dict[str, Any]:
        """The `data` field of the experiment's configuration; empty for tasks that are not trials."""
        if self._trial_info is None:
            return {}
        return self._trial_info._config.get("data") or {}  # pyright: ignore[reportPrivateUsage]

    @property
    def trial(self) -> TrialInfo:
        """What is particular to a trial.

        Raises:
            RuntimeError: This task is not a trial.
        """
        if self._trial_info is None:
            raise RuntimeError(f"ClusterInfo.trial exists for tasks of type TRIAL only; this one is a {self.task_type}")
        return self._trial_info

    @property
    def container_addrs(self) -> list[str]:
        """Addresses of all containers of the allocation, by rank."""
        return self._rendezvous_info.container_addrs if self._rendezvous_info else ["127.0.0.1"]

    @property
    def container_slot_counts(self) -> list[int]:
        """Numbers of slots of all containers of the allocation, by rank."""
        return self._rendezvous_info.container_slot_counts if self._rendezvous_info else [len(self.slot_ids)]

    @property
    def container_rank(self) -> int:
        """The rank of this container."""
        return self._rendezvous_info.container_rank if self._rendezvous_info else 0

    @property
    def gpu_uuids(self) -> list[str]:
        """UUIDs of the GPUs of this container."""
        return self._resources_info.gpu_uuids if self._resources_info else []


# Field -> (type, required). The files hold exactly these keys; a newer launcher may add some, which are ignored.
_CLUSTER = {
    "master_url": (str, True),
    "cluster_id": (str, True),
    "agent_id": (str, True),
    "slot_ids": ([int], True),
    "task_id": (str, True),
    "allocation_id": (str, True),
    "session_token": (str, True),
    "task_type": (str, True),
    "master_cert_name": (str, False),
    "master_cert_file": (str, False),
    "latest_checkpoint": (str, False),
}
_TRIAL = {
    "trial_id": (int, True),
    "experiment_id": (int, True),
    "trial_seed": (int, True),
    "hparams": (dict, True),
    "config": (dict, True),
    "steps_completed": (int, True),
    "trial_run_id": (int, True),
    "debug": (bool, True),
    "unique_port_offset": (int, False),
    "inter_node_network_interface": (str, False),
}
_RENDEZVOUS = {
    "container_addrs": ([str], True),
    "container_rank": (int, True),
    "container_slot_counts": ([int], True),
}
_RESOURCES = {"gpu_uuids": ([str], True)}
# Of the experiment's configuration, which the cluster sends with every default filled in.
_SECTIONS = ("checkpoint_storage", "resources", "searcher")

_cached: ClusterInfo | None = None


def get_cluster_info() -> ClusterInfo | None:
    """What this task knows about itself, or None outside of a cluster.

    Raises:
        InvalidConfigurationException: A file below `$DET_RUN_DIR/info` is not what the launcher writes.
    """
    global _cached
    if _cached is None:
        _cached = read_cluster_info(info_dir())
    return _cached


def read_cluster_info(folder: str) -> ClusterInfo | None:
    """Read and check the info files of `folder`; None if there is no cluster.json."""
    cluster = _read(os.path.join(folder, "cluster.json"), _CLUSTER)
    if cluster is None:
        return None
    trial = rendezvous = resources = None
    if cluster["task_type"] in ("TRIAL", "LOCAL"):  # LOCAL: `det experiment create --local`
        trial = _read_required(os.path.join(folder, "trial.json"), _TRIAL)
        if trial.get("unique_port_offset") is None:
            trial["unique_port_offset"] = 0
        rendezvous = _read(os.path.join(folder, "rendezvous.json"), _RENDEZVOUS)
    resources = _read(os.path.join(folder, "resources.json"), _RESOURCES)
    info = ClusterInfo(
        **cluster,
        trial_info=TrialInfo(**trial) if trial else None,
        rendezvous_info=RendezvousInfo(**rendezvous) if rendezvous else None,
        resources_info=ResourcesInfo(**resources) if resources else None,
    )
    if trial is not None and info.task_type == "TRIAL":
        _check_config(os.path.join(folder, "trial.json"), trial["config"])
    if rendezvous is not None:
        _check_rendezvous(os.path.join(folder, "rendezvous.json"), info)
    return info


def _check_config(path: str, config: dict[str, Any]) -> None:
    """What training code relies on. Raises: InvalidConfigurationException."""
    version: Any = config.get("version")
    if version not in (None, 0):
        raise InvalidConfigurationException(
            f"{path}: the experiment's configuration is of version {version!r}, but this package knows version 0; "
            "install the one that belongs to this cluster"
        )
    missing = [name for name in _SECTIONS if not isinstance(config.get(name), dict)]
    if missing:
        raise InvalidConfigurationException(
            f"{path}: the experiment's configuration lacks {', '.join(missing)}, which must be objects"
        )


def _check_rendezvous(path: str, info: ClusterInfo) -> None:
    """Ranks, addresses and slots must agree: workers would bind to each other's devices. Raises: as above."""
    rank, counts = info.container_rank, info.container_slot_counts
    count, slots = len(info.container_addrs), len(info.slot_ids)
    if not 0 <= rank < count:
        raise InvalidConfigurationException(
            f"{path}: container_rank is {rank}, but container_addrs has {count} entries"
        )
    if len(counts) != count:
        raise InvalidConfigurationException(
            f"{path}: container_slot_counts has {len(counts)} entries, but container_addrs has {count}"
        )
    if counts[rank] not in (slots, max(1, slots)):  # a task without slots counts as one worker
        raise InvalidConfigurationException(
            f"{path}: container_slot_counts says {counts[rank]} slots for this container (rank {rank}), but slot_ids "
            f"in cluster.json has {slots}: {info.slot_ids}"
        )


def _read_required(path: str, fields: Mapping[str, tuple[Any, bool]]) -> dict[str, Any]:
    values = _read(path, fields)
    if values is None:
        raise InvalidConfigurationException(
            f"{path} is missing although this task is a trial; start it with `python -m determined.exec.launch`"
        )
    return values


def _read(path: str, fields: Mapping[str, tuple[Any, bool]]) -> dict[str, Any] | None:
    import json

    try:
        with open(path, encoding="utf-8") as f:
            raw: Any = json.load(f)
    except FileNotFoundError:
        return None
    except ValueError as e:
        raise InvalidConfigurationException(f"{path} is not valid JSON: {e}") from e
    if not isinstance(raw, dict):
        raise InvalidConfigurationException(f"{path} must hold a JSON object, but holds a {type(raw).__name__}")
    values: dict[str, Any] = {}
    for name, (kind, required) in fields.items():
        value: Any = raw.get(name)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if value is None and required:
            raise InvalidConfigurationException(f"{path}: {name} is missing")
        if value is not None and not _fits(value, kind):
            expected = f"list of {kind[0].__name__}" if isinstance(kind, list) else kind.__name__  # pyright: ignore
            raise InvalidConfigurationException(f"{path}: {name} must be of type {expected}, but is {value!r}")
        values[name] = value
    return values


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, list):
        return isinstance(value, list) and all(_fits(item, kind[0]) for item in value)  # pyright: ignore
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
