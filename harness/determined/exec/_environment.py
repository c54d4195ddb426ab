"""The environment variables of a task, checked, and the info files made from them.

Source: spec container-contract.md §2 and §3.
"""

from __future__ import annotations

import json
import os

from determined._fail import fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_TASK = (
    "DET_MASTER",
    "DET_CLUSTER_ID",
    "DET_AGENT_ID",
    "DET_RESOURCES_ID",
    "DET_SLOT_IDS",
    "DET_TASK_ID",
    "DET_ALLOCATION_ID",
    "DET_SESSION_TOKEN",
    "DET_TASK_TYPE",
)
_TRIAL = (
    "DET_TRIAL_ID",
    "DET_EXPERIMENT_ID",
    "DET_TRIAL_RUN_ID",
    "DET_TRIAL_SEED",
    "DET_STEPS_COMPLETED",
    "DET_EXPERIMENT_CONFIG",
    "DET_HPARAMS",
)
# Kinds of tasks that execute the words that they were created with.
_COMMANDS = ("COMMAND", "GENERIC")
# Kinds that run a server of ours, and the module of this package that starts it.
_SERVERS = {
    "NOTEBOOK": "determined.exec.notebook",
    "SHELL": "determined.exec.shell",
    "TENSORBOARD": "determined.exec.tensorboard",
}


class TaskEnvironment:
    """The checked environment. Ends the process with one sentence when something is missing or wrong."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._require(_TASK)
        self.task_type = env["DET_TASK_TYPE"]
        if self.task_type not in ("TRIAL", *_COMMANDS, *_SERVERS):
            known = ", ".join(("TRIAL", *_COMMANDS, *_SERVERS))
            fail(f"DET_TASK_TYPE is {self.task_type!r}, but this harness starts {known}; install a newer one")
        self.is_trial = self.task_type == "TRIAL"
        self.server_module = _SERVERS.get(self.task_type, "")
        has_words = not self.is_trial and not self.server_module
        self._require(_TRIAL if self.is_trial else ("DET_TASK_ENTRYPOINT",) if has_words else ())
        self.master = env["DET_MASTER"]
        self.task_id = env["DET_TASK_ID"]
        self.allocation_id = env["DET_ALLOCATION_ID"]
        self.resources_id = env["DET_RESOURCES_ID"]
        self.agent_id = env["DET_AGENT_ID"]
        self.session_token = env["DET_SESSION_TOKEN"]
        self.run_dir = env.get("DET_RUN_DIR") or "/run/determined"
        self.workdir = env.get("DET_WORKDIR") or os.path.join(self.run_dir, "workdir")
        self.slot_ids: list[Any] = self._json("DET_SLOT_IDS", list)
        self.config: dict[str, Any] = self._json("DET_EXPERIMENT_CONFIG", dict) if self.is_trial else {}
        self.hparams: dict[str, Any] = self._json("DET_HPARAMS", dict) if self.is_trial else {}
        self.entrypoint: Any = self._json("DET_TASK_ENTRYPOINT", list) if has_words else self.config.get("entrypoint")
        known = "UNDETERRED_RENDEZVOUS"
        self.rendezvous: dict[str, Any] | None = self._json(known, dict) if self.is_trial and known in env else None
        self.start_dir = env.get("DET_TASK_WORK_DIR") or ""
        self.cert_file = env.get("DET_MASTER_CERT_FILE") or None
        self.cert_name = env.get("DET_MASTER_CERT_NAME") or None

    def cluster(self) -> dict[str, Any]:
        """The content of cluster.json."""
        return {
            "master_url": self.master,
            "cluster_id": self._env["DET_CLUSTER_ID"],
            "agent_id": self.agent_id,
            "slot_ids": self.slot_ids,
            "task_id": self.task_id,
            "allocation_id": self.allocation_id,
            "session_token": self.session_token,
            "task_type": self.task_type,
            "master_cert_name": self.cert_name,
            "master_cert_file": self.cert_file,
            "latest_checkpoint": self._env.get("DET_LATEST_CHECKPOINT") or None,
        }

    def trial(self) -> dict[str, Any]:
        """The content of trial.json."""
        return {
            "trial_id": self._int("DET_TRIAL_ID"),
            "experiment_id": self._int("DET_EXPERIMENT_ID"),
            "trial_seed": self._int("DET_TRIAL_SEED"),
            "hparams": self.hparams,
            "config": self.config,
            "steps_completed": self._int("DET_STEPS_COMPLETED"),
            "trial_run_id": self._int("DET_TRIAL_RUN_ID"),
            "debug": bool(self.config.get("debug")),
            "unique_port_offset": self._int("DET_UNIQUE_PORT_OFFSET", "0"),
            "inter_node_network_interface": self._env.get("DET_INTER_NODE_NETWORK_INTERFACE") or None,
        }

    def _require(self, names: tuple[str, ...]) -> None:
        missing = [name for name in names if name not in self._env]
        if missing:
            fail(
                f"the environment variable{'s' if len(missing) > 1 else ''} {', '.join(missing)} "
                f"{'are' if len(missing) > 1 else 'is'} not set; a container of the cluster has "
                f"{'them' if len(missing) > 1 else 'it'}, so this was started in another way"
            )

    def _int(self, name: str, default: str = "") -> int:
        text = self._env.get(name) or default
        try:
            return int(text)
        except ValueError:
            fail(f"the environment variable {name} is {text!r}, but must be an integer")

    def _json(self, name: str, kind: type) -> Any:
        try:
            value = json.loads(self._env[name])
        except ValueError as e:
            fail(f"the environment variable {name} is not valid JSON: {e}")
        if not isinstance(value, kind):
            fail(f"the environment variable {name} must be a JSON {'list' if kind is list else 'object'}")
        return value


def write_info_file(folder: str, name: str, content: dict[str, Any]) -> None:
    """Write an info file whole: under another name first. Only the task's user may read it: it holds a token."""
    path = os.path.join(folder, name)
    temporary = f"{path}.{os.getpid()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as f:
        json.dump(content, f)
    os.replace(temporary, path)
