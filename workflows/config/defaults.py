"""Where values come from that the user did not give: the cluster's settings, the seed, the fields' own defaults.

Source: spec experiment-config.md §6, rows 4 to 7.
"""

import hashlib
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from workflows.config.base import JsonMap
from workflows.config.policies import BUILTIN_LOG_POLICIES


class ClusterDefaults(BaseModel):
    """What the pool, the workspace and the cluster add to a config; the caller has resolved which of them wins.

    Every field is optional, and written as it would be in a config.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    checkpoint_storage: dict[str, Any] | None = Field(default=None, description="Of the workspace or the cluster.")
    resource_pool: str | None = Field(default=None, description="Pool of tasks that need slots.")
    aux_resource_pool: str | None = Field(default=None, description="Pool of tasks that need none.")
    priority: int | None = Field(default=None, description="The pool's default priority.")
    preemption_timeout: int | None = Field(default=None, description="Seconds.")
    image: str | dict[str, str] | None = Field(default=None, description="Container image.")
    environment_variables: list[str] | dict[str, list[str]] | None = Field(default=None, description="NAME=VALUE.")
    registry_auth: dict[str, Any] | None = Field(default=None, description="Login of the image's registry.")
    force_pull_image: bool | None = Field(default=None, description="Whether to pull a present image again.")
    add_capabilities: list[str] | None = Field(default=None, description="Linux capabilities to add.")
    drop_capabilities: list[str] | None = Field(default=None, description="Linux capabilities to drop.")
    cpu_pod_spec: dict[str, Any] | None = Field(default=None, description="Pod of tasks without slots.")
    gpu_pod_spec: dict[str, Any] | None = Field(default=None, description="Pod of tasks with slots.")
    devices: list[Any] | None = Field(default=None, description="Devices of the machine.")
    bind_mounts: list[dict[str, Any]] | None = Field(default=None, description="Directories of the machine.")
    slurm: dict[str, Any] | None = Field(default=None, description="What is passed on to Slurm.")
    pbs: dict[str, Any] | None = Field(default=None, description="What is passed on to PBS.")
    log_policies: list[dict[str, Any]] | None = Field(default=None, description="Log policies.")

    def as_config(self, slots_per_trial: int) -> JsonMap:
        """These defaults as a config of the lowest rank, for a task with that many slots."""
        environment: JsonMap = {
            name: getattr(self, name)
            for name in (
                "image",
                "environment_variables",
                "registry_auth",
                "force_pull_image",
                "add_capabilities",
                "drop_capabilities",
            )
        }
        environment["pod_spec"] = self.gpu_pod_spec if slots_per_trial else self.cpu_pod_spec
        pool = self.resource_pool if slots_per_trial else self.aux_resource_pool
        return {
            "resources": {"devices": self.devices, "resource_pool": pool, "priority": self.priority},
            "environment": environment,
            **{
                name: getattr(self, name)
                for name in (
                    "bind_mounts",
                    "slurm",
                    "pbs",
                    "log_policies",
                    "preemption_timeout",
                    "checkpoint_storage",
                )
            },
        }


def field_defaults(seed: int) -> JsonMap:
    """The defaults that depend on the seed or are joined with what the user wrote; the others are in the models."""
    return {
        "name": default_name(seed),
        "reproducibility": {"experiment_seed": seed % 2**32},
        "log_policies": [policy.model_dump(exclude_none=True) for policy in BUILTIN_LOG_POLICIES],
        # An empty map, so that a config without resources gets the section's own defaults.
        "resources": {},
    }


def default_name(seed: int, what: str = "Experiment") -> str:
    """A name that people can remember and say, always the same for a seed."""
    digest = hashlib.sha256(str(seed).encode()).digest()
    words = [
        words.split()[byte % len(words.split())] for words, byte in zip((_HOW, _WHICH, _WHO), digest, strict=False)
    ]
    return f"{what} ({'-'.join(words)})"


_HOW = (
    "barely boldly briefly brightly calmly clearly closely coolly deeply duly early easily evenly fairly firmly"
    " fondly freely freshly fully gently gladly gravely greatly happily highly justly keenly kindly largely lately"
    " lightly loosely loudly merrily mildly mostly nearly neatly newly nicely nightly nobly openly overly partly"
    " plainly politely quickly quietly rarely readily really richly safely sharply slowly smoothly softly steadily"
    " sweetly swiftly truly vastly wisely"
)
_WHICH = (
    "agile amber ample apt azure bold brave bright brisk calm candid clever cosmic crisp curious daring deft eager"
    " early exact fair famous fine fluent fond frank free fresh gentle glad golden grand hardy honest humble ideal"
    " jolly keen kind light lively loyal lucid lucky mellow merry mighty modest neat noble patient proud quick"
    " quiet rapid ready robust sharp silent smart solid steady sunny"
)
_WHO = (
    "alpaca ant badger bat bear beaver bee bison bobcat buffalo camel cat condor cougar crane cricket crow deer"
    " dingo dolphin dove eagle egret eland elk falcon ferret finch fox gazelle gecko gibbon goose grouse hare hawk"
    " heron hornet ibex iguana jackal jaguar kestrel kiwi koala lark lemur leopard lion lizard llama lynx magpie"
    " marmot marten mole moose newt ocelot orca osprey otter owl panda"
)
