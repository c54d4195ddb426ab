"""What a user's pods may have of a cluster. The operator's own part of each pod is not held to it.

A pod that mounts a host's folder, another task's Secret or a service account of the cluster is as good as root there,
or as another user. So a user gets what is named here, and what the operator adds to it; all else is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, cast

from activities.launchers.base import ContainerSpec, LaunchError
from activities.launchers.host_policy import granted
from activities.launchers.kubernetes.cluster import Json, parts

#: Keys of a pod's `spec` that a user may set, besides `containers` and `volumes`, which are looked into.
_SPEC_KEYS = frozenset({
    "affinity", "containers", "dnsConfig", "dnsPolicy", "hostAliases", "imagePullSecrets", "initContainers",
    "nodeSelector", "os", "preemptionPolicy", "readinessGates", "securityContext", "tolerations",
    "topologySpreadConstraints", "volumes",
})  # fmt: skip
#: Of `spec.securityContext`: as which user and groups a pod runs, its workspace and its owner say.
_POD_SECURITY_KEYS = frozenset({"fsGroupChangePolicy"})
#: Of a container's: those with an effect beyond the container are the operator's.
_SECURITY_KEYS = frozenset({"readOnlyRootFilesystem", "runAsNonRoot"})
#: Where a volume may come from.
_VOLUME_KINDS = frozenset({
    "configMap", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret",
})  # fmt: skip
#: Of a container that a user adds.
_CONTAINER_KEYS = frozenset({
    "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name", "ports",
    "readinessProbe", "resources", "restartPolicy", "securityContext", "startupProbe", "stdin",
    "terminationMessagePath", "terminationMessagePolicy", "tty", "volumeDevices", "volumeMounts", "workingDir",
})  # fmt: skip
#: Names of what agents make: a task's Secret holds its token.
OURS = "det-"


@dataclass(frozen=True)
class PodPolicy:
    """What may be mounted and added. It takes the place of a host's `HostPolicy`.

    Attributes:
        volumes: Folders for which the operator named a volume.
        host_paths: Folders of nodes below which all may be mounted.
        capabilities: That a container may add, without `CAP_`.
        service_accounts: That a user may choose.
        priority_classes: The same.
        secrets: That a user's pods may read; `*`: all in the namespace but those of tasks.
    """

    volumes: Sequence[str] = ()
    host_paths: Sequence[str] = ()
    capabilities: frozenset[str] = frozenset()
    service_accounts: frozenset[str] = frozenset()
    priority_classes: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset({"*"})

    def applied(self, spec: ContainerSpec) -> ContainerSpec:
        """The specification, if its user may have all of it. Raises: LaunchError("bad_spec")."""
        for mount in spec.mounts:
            if not mount.is_trusted and not self._may_mount(str(mount.source)):
                listed = ", ".join([*self.volumes, *self.host_paths]) or "none"
                raise LaunchError(
                    "bad_spec",
                    f"bind mount {mount.source}: not among the folders that pods of this cluster may have ({listed}):"
                    " use one of these, or a volume in `environment.pod_spec`, or let the operator add it.",
                )
        if spec.devices:
            raise LaunchError(
                "bad_spec",
                f"resources.devices: {spec.devices[0].source}: a pod gets no devices of its node; ask for slots, or for"
                " a device plugin's resource in `environment.pod_spec`.",
            )
        added = granted(spec.add_capabilities, self.capabilities, "this cluster")
        for where, value, why in self._refused(cast("Json", spec.pod_spec)):
            raise LaunchError("bad_spec", f"environment.pod_spec.{where}: {value!r}: {why}.")
        return dataclasses.replace(spec, add_capabilities=added)

    def _may_mount(self, source: str) -> bool:
        path = PurePosixPath(source)
        folders = [*self.volumes, *self.host_paths]
        return ".." not in path.parts and any(path.is_relative_to(folder) for folder in folders)

    def _refused(self, wanted: Json) -> Iterator[tuple[str, Any, str]]:
        """What the user may not have: where, what, and why."""
        spec = cast("Any", wanted.get("spec") or {})
        if not isinstance(spec, dict):
            yield "spec", spec, "expected a mapping"
            return
        spec = cast("Json", spec)
        for key, allowed in (
            ("serviceAccountName", self.service_accounts),
            ("serviceAccount", self.service_accounts),
            ("priorityClassName", self.priority_classes),
        ):
            if key in spec and spec[key] not in allowed:
                yield f"spec.{key}", spec[key], f"expected one of: {', '.join(sorted(allowed)) or 'none'}"
        known = _SPEC_KEYS | {"serviceAccountName", "serviceAccount", "priorityClassName"}
        yield from _unknown("spec", spec, known)
        yield from _unknown("spec.securityContext", spec.get("securityContext"), _POD_SECURITY_KEYS)
        for kind in ("containers", "initContainers"):
            if not isinstance(spec.get(kind) or [], list):
                yield f"spec.{kind}", spec[kind], "expected a list"
                continue
            for number, container in enumerate(parts(spec, kind)):
                where = f"spec.{kind}[{number}]"
                yield from _unknown(where, container, _CONTAINER_KEYS)
                yield from _unknown(f"{where}.securityContext", container.get("securityContext"), _SECURITY_KEYS)
        for number, volume in enumerate(parts(spec, "volumes")):
            yield from self._refused_volume(f"spec.volumes[{number}]", volume)
        yield from self._refused_secrets("spec", spec)

    def _refused_volume(self, where: str, volume: Json) -> Iterator[tuple[str, Any, str]]:
        path = cast("Any", volume.get("hostPath"))
        if path is not None:
            folder = str(cast("Json", path).get("path")) if isinstance(path, dict) else str(path)
            if not self._may_mount(folder):
                yield f"{where}.hostPath", folder, "not among the nodes' folders that pods of this cluster may have"
        yield from _unknown(where, volume, _VOLUME_KINDS | {"name", "hostPath"})
        for number, source in enumerate(parts(volume, "projected", "sources")):
            if "serviceAccountToken" in source or "clusterTrustBundle" in source:
                yield f"{where}.projected.sources[{number}]", next(iter(source)), "a pod gets no login of the cluster"

    def _refused_secrets(self, where: str, value: Any) -> Iterator[tuple[str, Any, str]]:
        """Secrets, however they are named: as a volume, projected, or in a variable."""
        if isinstance(value, list):
            for number, each in enumerate(cast("list[Any]", value)):
                yield from self._refused_secrets(f"{where}[{number}]", each)
        if not isinstance(value, dict):
            return
        for key, each in cast("Json", value).items():
            name: Any = None
            if key == "secretName":
                name = each
            elif key in ("secret", "secretRef", "secretKeyRef") and isinstance(each, dict):
                name = cast("Json", each).get("name")
            if name is not None and not self._may_read(str(name)):
                yield f"{where}.{key}", name, "not a Secret that pods of users may read"
            yield from self._refused_secrets(f"{where}.{key}", each)

    def _may_read(self, secret: str) -> bool:
        return not secret.startswith(OURS) and ("*" in self.secrets or secret in self.secrets)


def _unknown(where: str, value: Any, known: frozenset[str]) -> Iterator[tuple[str, Any, str]]:
    if value is None:
        return
    if not isinstance(value, dict):
        yield where, value, "expected a mapping"
        return
    for key in cast("Json", value):
        if key not in known:
            yield (
                f"{where}.{key}",
                cast("Json", value)[key],
                "the operator's to give, in the part of each pod that is theirs",
            )
