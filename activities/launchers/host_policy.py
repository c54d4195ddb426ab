"""The folders, devices and capabilities of a host that experiments may use: set by operators, enforced at launch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from activities.launchers.base import ContainerSpec, LaunchError

#: What a container has unless its configuration drops it: what an image that runs as root needs to install packages and
#: to become another user.
USUAL_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")


@dataclass(frozen=True)
class HostPolicy:
    """What may be mounted, used and added.

    Attributes:
        bind_mounts: Folders below which all may be mounted; None: everywhere.
        devices: Devices, or folders of devices; None: all.
        capabilities: What may be added to `USUAL_CAPABILITIES`, without `CAP_`.
    """

    bind_mounts: tuple[Path, ...] | None = None
    devices: tuple[Path, ...] | None = None
    capabilities: frozenset[str] = frozenset()

    @staticmethod
    def of(bind_mounts: str | None, devices: str | None, capabilities: str) -> HostPolicy:
        """From the texts of the settings: absolute paths separated by colons, capabilities by commas."""
        return HostPolicy(
            _paths(bind_mounts),
            _paths(devices),
            frozenset(_capability(name) for name in capabilities.replace(",", " ").split()),
        )

    def applied(self, spec: ContainerSpec) -> ContainerSpec:
        """The specification with its paths followed to where they lead: what was looked at is what is mounted.

        Raises: LaunchError("bad_spec").
        """
        mounts = [
            mount
            if mount.is_trusted
            else dataclasses.replace(
                mount, source=_followed(mount.source, self.bind_mounts, "bind mount", "UNDETERRED_BIND_MOUNTS")
            )
            for mount in spec.mounts
        ]
        devices = [
            dataclasses.replace(
                device, source=_followed(device.source, self.devices, "device", "UNDETERRED_HOST_DEVICES")
            )
            for device in spec.devices
        ]
        added = granted(spec.add_capabilities, self.capabilities, "the agent's host", usual=USUAL_CAPABILITIES)
        dropped = tuple(_capability(name) for name in spec.drop_capabilities)
        return dataclasses.replace(
            spec, mounts=mounts, devices=devices, add_capabilities=added, drop_capabilities=dropped
        )


def granted(wanted: Sequence[str], given: Collection[str], giver: str, usual: Collection[str] = ()) -> tuple[str, ...]:
    """Capabilities that a container adds, each once, without `CAP_`.

    Args:
        wanted: By the configuration.
        given: By the operator; `ALL`: any.
        giver: What gives them, for a sentence.
        usual: What every container has.

    Raises: LaunchError("bad_spec"), for one that is not given.
    """
    found = sorted({_capability(name) for name in wanted})
    for name in found:
        if name not in given and name not in usual and "ALL" not in given:
            raise LaunchError(
                "bad_spec",
                f"environment.add_capabilities: {name}: {giver} does not give it to experiments (it gives"
                f" {_listed(sorted(given))}); leave it out, or let the operator add it to UNDETERRED_CAPABILITIES.",
            )
    return tuple(found)


def _followed(path: Path, allowed: Sequence[Path] | None, what: str, setting: str) -> Path:
    if allowed is None:
        return path
    real = Path(os.path.realpath(path))
    if any(real.is_relative_to(os.path.realpath(folder)) for folder in allowed):
        return real
    leads = f" leads to {real}, which" if real != path else ""
    raise LaunchError(
        "bad_spec",
        f"{what} {path}:{leads} is not among what experiments may have of the agent's host"
        f" ({_listed([str(folder) for folder in allowed])}); use one of these, or let the operator add to {setting}.",
    )


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words) or "none"


def _capability(name: str) -> str:
    return name.strip().upper().removeprefix("CAP_")


def _paths(text: str | None) -> tuple[Path, ...] | None:
    return None if text is None else tuple(Path(part) for part in text.split(":") if part)
