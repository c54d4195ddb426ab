"""What starts gangs on a cluster: how it is found, and what it sees on Jobs and pods. `tests/kubernetes` has real ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from activities.launchers.base import ContainerSpec, LaunchError
from activities.launchers.kubernetes import manifest
from activities.launchers.kubernetes.cluster import Cluster, ClusterError, ClusterGone, NotThere
from activities.launchers.kubernetes.manifest import PodSettings
from activities.launchers.kubernetes.schedulers import GangKind, GangScheduler, found, says

VERSIONS = {
    "kueue.x-k8s.io": "v1beta2",
    "scheduling.k8s.io": "v1",
    "scheduling.run.ai": "v2alpha2",
    "scheduling.volcano.sh": "v1beta1",
    "scheduling.x-k8s.io": "v1alpha1",
}
KUEUE = "/apis/kueue.x-k8s.io/v1beta2/namespaces/training/localqueues"
VOLCANO = "/apis/scheduling.volcano.sh/v1beta1/queues"
KAI = "/apis/scheduling.run.ai/v2/queues"


class OneThatServes(Cluster):
    """Answers for a cluster that serves some APIs, and has some objects."""

    def __init__(self, groups: Mapping[str, tuple[str, ...]], *objects: str, may_create: bool = True) -> None:
        super().__init__(None, "training")
        self._groups = groups
        self._objects = objects
        self._may_create = may_create

    async def get(self, path: str, **_: str | int) -> dict[str, Any]:
        if path == "/apis":
            return {
                "groups": [
                    {"name": name, "versions": [{"groupVersion": f"{name}/{version}"} for version in versions]}
                    for name, versions in self._groups.items()
                ]
            }
        if path.startswith("/apis/") and path.count("/") == 3:
            has_groups = not path.endswith(("/v1", "/v2"))
            return {"resources": [{"name": "podgroups"}] if has_groups else [{"name": "queues"}]}
        if path in self._objects:
            return {}
        if f"{path}!" in self._objects:
            raise ClusterError(403, "Forbidden", "localqueues is forbidden")
        raise NotThere(404, "NotFound", "not found")

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        assert path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        assert body["spec"]["resourceAttributes"]["namespace"] == "training"
        return {"status": {"allowed": self._may_create}}


def serving(*kinds: str, **more: Any) -> OneThatServes:
    """A cluster with the queues of an installation."""
    groups = {
        "kueue": {"kueue.x-k8s.io": ("v1beta2",)},
        "core": {"scheduling.k8s.io": ("v1", "v1alpha2")},
        "kai": {"scheduling.run.ai": ("v2", "v2alpha2")},
        "volcano": {"scheduling.volcano.sh": ("v1beta1",)},
        "coscheduling": {"scheduling.x-k8s.io": ("v1alpha1",)},
    }
    served = {"scheduling.k8s.io": ("v1",)}
    for kind in kinds:
        served |= groups[kind]
    return OneThatServes(served, f"{KUEUE}/default", f"{VOLCANO}/default", f"{KAI}/default-queue", **more)


async def look(cluster: Cluster, wanted: str = "auto", **more: str) -> GangScheduler:
    return await found(cluster, wanted, **({"kueue_queue": "", "queue": "", "scheduler": ""} | more))


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((), GangScheduler()),
        (("coscheduling",), GangScheduler()),
        (("volcano",), GangScheduler("volcano", "scheduling.volcano.sh/v1beta1", "default", "volcano")),
        (("volcano", "kai"), GangScheduler("kai", "scheduling.run.ai/v2alpha2", "default-queue", "kai-scheduler")),
        (("volcano", "kai", "core"), GangScheduler("core", "scheduling.k8s.io/v1alpha2")),
        (("volcano", "kai", "core", "kueue"), GangScheduler("kueue", queue="default")),
    ],
)
async def test_the_first_that_is_there_starts_gangs(kinds: tuple[str, ...], expected: GangScheduler) -> None:
    assert await look(serving(*kinds)) == expected


async def test_the_operator_chooses_another_one() -> None:
    everything = serving("volcano", "kai", "core", "kueue", "coscheduling")
    assert (await look(everything, "own")).kind == "own"
    assert (await look(everything, "volcano")).kind == "volcano"
    chosen = await look(everything, "coscheduling", scheduler="gangs")
    assert chosen == GangScheduler("coscheduling", "scheduling.x-k8s.io/v1alpha1", "", "gangs")
    assert (await look(everything, "kueue", kueue_queue="research")).queue == "research"


async def test_a_scheduler_whose_queue_is_not_there_is_passed_over() -> None:
    """An API alone places no pod."""
    assert (await look(OneThatServes({"scheduling.volcano.sh": ("v1beta1",)}))).kind == "own"
    assert (await look(OneThatServes({"kueue.x-k8s.io": ("v1beta2",)}))).kind == "own"
    assert (await look(serving("volcano", may_create=False))).kind == "own"


async def test_what_the_login_may_not_see_is_passed_over() -> None:
    assert (await look(OneThatServes({"kueue.x-k8s.io": ("v1beta2",)}, f"{KUEUE}/default!"))).kind == "own"
    hidden = OneThatServes({"scheduling.volcano.sh": ("v1beta1",)}, f"{VOLCANO}/default!")
    assert (await look(hidden)).kind == "own"


@pytest.mark.parametrize(
    ("cluster", "wanted", "more", "expected"),
    [
        (serving(), "volcano", {}, "gang: 'volcano': the cluster serves no API scheduling.volcano.sh"),
        (serving(), "core", {}, "gang: 'core': the cluster's API scheduling.k8s.io has no podgroups"),
        (serving("kai"), "kai", {"queue": "team"}, "gang: 'kai': KAI has no queue 'team'"),
        (serving(), "auto", {"kueue_queue": "team"}, "gang: 'auto': the cluster serves no API kueue.x-k8s.io"),
        (
            OneThatServes({"kueue.x-k8s.io": ("v1beta2",)}), "kueue", {},
            "gang: 'kueue': Kueue has no local queue 'default' in namespace 'training'",
        ),
        (
            serving("core", may_create=False), "core", {},
            "gang: 'core': the agent's login may not create podgroups.scheduling.k8s.io in namespace 'training'",
        ),
    ],
)  # fmt: skip
async def test_what_the_operator_wants_and_the_cluster_lacks_is_named(
    cluster: Cluster, wanted: str, more: dict[str, str], expected: str
) -> None:
    with pytest.raises(LaunchError, match="expected what the cluster has, or `own`") as refused:
        await look(cluster, wanted, **more)
    assert str(refused.value).startswith(expected)
    assert refused.value.reason == "bad_spec"


async def test_cluster_that_does_not_answer_is_no_cluster_without_kueue() -> None:
    """An agent that took it for one would place gangs by gates of its own, beside those that Kueue admits."""

    class Silent(OneThatServes):
        async def get(self, path: str, **_: str | int) -> dict[str, Any]:
            raise ClusterGone(f"GET {path}: no answer")

    with pytest.raises(LaunchError) as refused:
        await look(Silent({}))
    assert refused.value.reason == "engine_unavailable"


def made(gangs: GangScheduler, size: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A Job and its PodGroup."""
    settings = PodSettings(agent_id="gpu", gangs=gangs, pod_spec={"metadata": {"labels": {"team": "a"}}})
    specs = [
        ContainerSpec(f"7.a.1-{rank}", ["python3"], {}, image="i", group="7.a.1", rank=rank, group_size=size)
        for rank in range(size)
    ]
    job = manifest.job(specs, settings)
    job["metadata"]["uid"] = "u1"
    return job, manifest.pod_group(job, size, settings)


@pytest.mark.parametrize(
    ("kind", "version", "spec"),
    [
        ("core", "scheduling.k8s.io/v1alpha2", {"schedulingPolicy": {"gang": {"minCount": 3}}}),
        ("kai", "scheduling.run.ai/v2alpha2", {"minMember": 3, "queue": "q"}),
        ("volcano", "scheduling.volcano.sh/v1beta1", {"minMember": 3, "queue": "q"}),
        ("coscheduling", "scheduling.x-k8s.io/v1alpha1", {"minMember": 3}),
    ],
)
def test_gang_gets_a_group_that_goes_with_its_job(kind: GangKind, version: str, spec: dict[str, Any]) -> None:
    queue = "q" if kind in ("kai", "volcano") else ""
    job, group = made(GangScheduler(kind, version, queue, "their-scheduler"), 3)
    assert group is not None
    name = job["metadata"]["name"]
    assert (group["apiVersion"], group["kind"], group["spec"]) == (version, "PodGroup", spec)
    assert group["metadata"]["name"] == name
    [owner] = group["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", name, "u1")
    template = job["spec"]["template"]
    assert "schedulingGates" not in template["spec"]
    assert job["spec"]["suspend"] is False
    assert template["spec"]["schedulerName"] == "their-scheduler"
    assert template["metadata"]["labels"]["team"] == "a"
    seen = {
        "core": template["spec"].get("schedulingGroup"),
        "kai": [
            template["metadata"].get("annotations"),
            template["metadata"]["labels"].get("kai.scheduler/queue"),
            group["metadata"]["labels"].get("kai.scheduler/queue"),
        ],
        "volcano": template["metadata"].get("annotations"),
        "coscheduling": template["metadata"]["labels"].get("scheduling.x-k8s.io/pod-group"),
    }
    assert (
        seen[kind]
        == {
            "core": {"podGroupName": name},
            "kai": [{"pod-group-name": name, "kai.scheduler/skip-podgrouper": "true"}, "q", "q"],
            "volcano": {"scheduling.k8s.io/group-name": name},
            "coscheduling": name,
        }[kind]
    )


def test_a_pod_by_itself_gets_a_group_only_where_its_scheduler_wants_one() -> None:
    for kind, wants in (("core", False), ("coscheduling", False), ("kai", True), ("volcano", True)):
        job, group = made(GangScheduler(kind, "some/v1", "q", "their-scheduler"), 1)
        assert (group is not None) == wants, kind
        assert job["spec"]["template"]["spec"]["schedulerName"] == "their-scheduler", "one places all of a node's pods"


def test_gates_are_those_of_gangs_that_nobody_else_starts() -> None:
    job, group = made(GangScheduler(), 2)
    assert group is None
    assert job["spec"]["template"]["spec"]["schedulingGates"] == [{"name": "undeterred.ai/gang"}]
    assert "schedulingGates" not in made(GangScheduler(), 1)[0]["spec"]["template"]["spec"]
    queued, none = made(GangScheduler("kueue", queue="research"), 2)
    assert none is None
    assert queued["spec"]["suspend"] is True
    assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert "schedulingGates" not in queued["spec"]["template"]["spec"]


def test_scheduler_that_the_operator_gives_pods_stays() -> None:
    settings = PodSettings(
        "gpu",
        gangs=GangScheduler("volcano", "v", "q", "volcano"),
        pod_spec={"spec": {"schedulerName": "volcano-of-team"}},
    )
    job = manifest.job([ContainerSpec("7.a.1-0", ["python3"], {}, image="i")], settings)
    assert job["spec"]["template"]["spec"]["schedulerName"] == "volcano-of-team"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, ""),
        ({"conditions": [{"type": "PodGroupScheduled", "status": "False", "message": "no room for 2"}]}, "no room for 2"),
        ({"conditions": [{"type": "PodGroupInitiallyScheduled", "status": "False", "message": "none"}]}, "none"),
        ({"conditions": [{"type": "PodGroupScheduled", "status": "True", "message": "placed"}]}, ""),
        ({"conditions": [{"type": "Unschedulable", "status": "True", "message": "2/2 tasks in gang"}]}, "2/2 tasks in gang"),
        ({"conditions": [{"type": "Scheduled", "status": "True", "message": "tasks in gang are ready"}]}, ""),
        ({"schedulingConditions": [{"type": "UnschedulableOnNodePool", "status": "True", "message": "over quota"}]}, "over quota"),
        ({"conditions": [{"type": "DisruptionTarget", "status": "True", "message": "preempted"}]}, ""),
    ],
)  # fmt: skip
def test_why_a_group_waits_is_quoted(status: dict[str, Any], expected: str) -> None:
    assert says({"status": status}) == expected
