"""A Kubernetes whose only node is this machine: its own programs, a real kubelet with containerd, and no registry.

All of its programs are one, compiled from their Go modules the first time (`programs/`). `python -m tests.kubernetes.machine`
starts a cluster, says where its kubeconfig is, and takes it down when it is interrupted.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import psutil

from tests.deploy.programs import of_cluster
from tests.kit.certificates import Authority
from tests.kit.servers import cni_plugins, container_programs, free_port
from tests.kubernetes.images import TRIAL_IMAGE, Image, archived, trial_files
from tests.kubernetes.names import answering

#: The last whose kubelet works with containerd 1.6, Debian's. Helm in `programs/go.mod` is one with libraries of the same version.
VERSION = "v1.35.4"
NODE = "node-1"
BRIDGE = "10.244.77.1"
"""Where pods reach this machine, and it alone reaches the API server."""

PAUSE = "undeterred.test/pause:1"
#: Of all clusters of this machine: there is one at a time, as its bridge and its addresses are fixed.
_FOLDER = Path("/tmp/undeterred-kubernetes")
_LOCK = _FOLDER.with_suffix(".lock")
_LINK = "undk8s0"
_PODS, _SERVICES = "10.244.77", "10.96.77"
_PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
#: What the kubelet and the proxy set for the whole machine; it is set back.
_SET = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "net/ipv4/ip_forward"),
    *("net/ipv4/conf/all/route_localnet", "net/netfilter/nf_conntrack_tcp_timeout_established"),
    "net/netfilter/nf_conntrack_tcp_timeout_close_wait",
)
#: A node that says nothing for so long is lost, and its pods are given up so long after that: tests can't wait for minutes.
_SILENT_S, _GIVEN_UP_S = 8, 4


def programs() -> Path:
    """The folder of the cluster's programs, compiled the first time. Raises: subprocess.CalledProcessError."""
    known = {"gitVersion": VERSION, "gitMajor": "1", "gitMinor": VERSION.split(".")[1]}
    linked_with = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in known.items())
    return of_cluster("kubernetes", ".", linked_with=linked_with, aliases=_PROGRAMS)


class Machine:
    """A running cluster. `kubeconfig` is its administrator's."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._authority = Authority(_made("pki", 0o700), "cluster")
        self._ports = {name: free_port() for name in ("api", "etcd", "peers", "kubelet", "proxy", "health")}
        self.server = f"https://{BRIDGE}:{self._ports['api']}"
        self.kubeconfig = self._kubeconfig("admin", "system:masters")

    def service(self, namespace: str, name: str) -> str:
        """The address of a service; empty: there is none, or it has none of its own."""
        with self.api() as api:
            found = api.get(f"/api/v1/namespaces/{namespace}/services/{name}").json()
        address = found.get("spec", {}).get("clusterIP", "")
        return "" if address == "None" else address

    def api(self) -> httpx.Client:
        """The API server, as its administrator."""
        context = ssl.create_default_context(cafile=str(self._authority.file))
        context.load_cert_chain(_FOLDER / "pki" / "admin.pem", _FOLDER / "pki" / "admin-key.pem")
        return httpx.Client(base_url=self.server, verify=context)

    @contextlib.contextmanager
    def beside_another(self) -> Generator[None]:
        """With a second node that takes no pods and is always ready: a cluster whose nodes are all silent gives none up."""
        name, leases = "node-2", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        is_over = threading.Event()
        ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
        made = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "spec": {"taints": [{"key": "test", "effect": "NoSchedule"}]},
            "status": {"conditions": [ready]},
        }

        def beat() -> None:
            with self.api() as api:
                while not is_over.wait(1.0):
                    spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now()}
                    lease = {"metadata": {"name": name}, "spec": spec}
                    if api.post(leases, json=lease).status_code == 409:
                        headers = {"Content-Type": "application/merge-patch+json"}
                        api.patch(f"{leases}/{name}", json=lease, headers=headers)

        with self.api() as api:
            api.post("/api/v1/nodes", json=made).raise_for_status()
            thread = threading.Thread(target=beat, daemon=True)
            thread.start()
            try:
                yield
            finally:
                is_over.set()
                thread.join()
                for path in (f"/api/v1/nodes/{name}", f"{leases}/{name}"):
                    api.delete(path)

    def kubectl(self, *words: str) -> str:
        """What the cluster answers. Raises: subprocess.CalledProcessError."""
        line = [str(self._programs / "kubectl"), f"--kubeconfig={self.kubeconfig}", "--request-timeout=5s", *words]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout

    def load(self, *images: Image) -> None:
        """Give the node images, of the same files."""
        with tempfile.NamedTemporaryFile(suffix=".tar") as file:
            archived(Path(file.name), *images)
            _ctr("images", "import", "--snapshotter", "overlayfs", file.name)

    def start(self) -> None:
        """Returns when the node is ready."""
        self._start_network()
        self._start_containers()
        self._start_control_plane()
        files = trial_files(_FOLDER)
        self.load(Image(TRIAL_IMAGE, [files]), Image(PAUSE, [files], ("/usr/bin/sleep", "infinity")))
        self._until("the API server", 120, lambda: self.kubectl("get", "--raw=/readyz"))
        for name in ("kube-controller-manager", "kube-scheduler"):
            self._run(name, *self._arguments(name))
        self.start_node()
        self._until("a service account", 60, lambda: self.kubectl("get", "serviceaccount", "default"))

    def start_node(self) -> None:
        """Let the node run pods, first of all or after `end_node`."""
        for name in ("kubelet", "kube-proxy"):
            if name not in self._processes:
                self._run(name, *self._arguments(name))
        ready = ("wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=4s")
        self._until("the node", 120, lambda: self.kubectl(*ready))

    def end_node(self) -> None:
        """As if its power went: the kubelet and all that runs in pods are killed together, and nobody says so."""
        kubelet = self._processes.pop("kubelet")
        kubelet.kill()
        kubelet.wait()
        for shim in _shims():
            for process in shim.children(recursive=True):
                _kill(process)

    def stop(self) -> None:
        """Stop everything, in whatever state it is."""
        for process in reversed(list(self._processes.values())):
            process.kill()
            process.wait()

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _run(self, name: str, *arguments: str, program: str = "") -> None:
        with (_made("log") / f"{name}.log").open("a") as log:
            line = [program or str(self._programs / name), *arguments]
            self._processes[name] = subprocess.Popen(
                line, cwd=_FOLDER, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _until(self, what: str, limit_s: float, answers: Callable[[], object]) -> None:
        deadline = time.monotonic() + limit_s
        while True:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} of the tests' Kubernetes ended:\n{_tail(name)}")
            with contextlib.suppress(subprocess.CalledProcessError):
                answers()
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} of the tests' Kubernetes was not ready within {limit_s:g} s")
            time.sleep(0.2)

    def _start_network(self) -> None:
        saved = {name: path.read_text() for name in _SET if (path := Path("/proc/sys", name)).exists()}
        (_FOLDER / "sysctl.json").write_text(json.dumps(saved))
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for words in (
            ("ip", "link", "add", _LINK, "type", "bridge"),
            ("ip", "addr", "add", f"{BRIDGE}/24", "dev", _LINK),
            ("ip", "link", "set", _LINK, "up"),
            # Docker's engine sets the chain's policy to DROP, which stops pods of one bridge where br_netfilter is on
            ("iptables", "-w", "-I", "FORWARD", "-i", _LINK, "-o", _LINK, "-j", "ACCEPT"),
        ):
            subprocess.run(words, check=True, capture_output=True)

    def _start_containers(self) -> None:
        # no default route: pods reach each other, services and this machine, and nothing further
        plugin = {
            "type": "bridge",
            "bridge": _LINK,
            "isGateway": True,
            "ipMasq": False,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "dataDir": str(_FOLDER / "addresses"),
                "ranges": [[{"subnet": f"{_PODS}.0/24", "rangeStart": f"{_PODS}.10", "gateway": BRIDGE}]],
                "routes": [{"dst": f"{_SERVICES}.0/24", "gw": BRIDGE}],
            },
        }
        network = {"cniVersion": "0.4.0", "name": "test", "plugins": [plugin]}
        (_made("cni") / "10-bridge.conflist").write_text(json.dumps(network))
        (_FOLDER / "containerd.toml").write_text(
            f"""version = 2
root = "{_FOLDER}/containerd"
state = "{_FOLDER}/run"
[grpc]
  address = "{_socket()}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{_FOLDER}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_plugins()}"
    conf_dir = "{_FOLDER}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""
        )
        containerd = shutil.which("containerd")
        assert containerd is not None
        self._run("containerd", "--config", str(_FOLDER / "containerd.toml"), program=containerd)
        self._until("containerd", 60, lambda: _ctr("version"))

    def _start_control_plane(self) -> None:
        etcd, peers = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peers"))
        self._run(
            "etcd",
            *("--name=test", f"--data-dir={_FOLDER}/etcd", "--unsafe-no-fsync", "--log-level=warn"),
            *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"),
            *(
                f"--listen-peer-urls={peers}",
                f"--initial-advertise-peer-urls={peers}",
                f"--initial-cluster=test={peers}",
            ),
        )
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
        addresses = (BRIDGE, f"{_SERVICES}.1", "127.0.0.1")
        certificate, key = self._authority.issue("kube-apiserver", *names, addresses=addresses)
        accounts, accounts_key = self._authority.issue("service-accounts")
        client, client_key = self._authority.issue("admin", organization="system:masters")
        self._run(
            "kube-apiserver",
            *(f"--bind-address={BRIDGE}", f"--advertise-address={BRIDGE}", f"--secure-port={self._ports['api']}"),
            *(f"--etcd-servers={etcd}", "--anonymous-auth=false", "--profiling=false", "--allow-privileged=true"),
            *(f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}"),
            f"--client-ca-file={self._authority.file}",
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            *(f"--kubelet-client-certificate={client}", f"--kubelet-client-key={client_key}"),
            f"--kubelet-certificate-authority={self._authority.file}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-cluster-ip-range={_SERVICES}.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            *(f"--service-account-key-file={accounts}", f"--service-account-signing-key-file={accounts_key}"),
            f"--default-unreachable-toleration-seconds={_GIVEN_UP_S}",
            f"--default-not-ready-toleration-seconds={_GIVEN_UP_S}",
        )

    def _arguments(self, name: str) -> Sequence[str]:
        config = f"--kubeconfig={self._kubeconfig(name, 'system:nodes' if name == 'kubelet' else '')}"
        if name == "kube-controller-manager":
            accounts_key = _FOLDER / "pki" / "service-accounts-key.pem"
            return (
                *(config, "--leader-elect=false", "--secure-port=0", "--use-service-account-credentials=true"),
                *(f"--root-ca-file={self._authority.file}", f"--service-account-private-key-file={accounts_key}"),
                *(f"--node-monitor-grace-period={_SILENT_S}s", "--node-monitor-period=1s"),
            )
        if name == "kube-scheduler":
            return (config, "--leader-elect=false", "--secure-port=0")
        if name == "kube-proxy":
            return (
                *(config, f"--hostname-override={NODE}", f"--cluster-cidr={_PODS}.0/24"),
                *("--conntrack-max-per-core=0", "--iptables-localhost-nodeports=false"),
                f"--metrics-bind-address=127.0.0.1:{self._ports['proxy']}",
                f"--healthz-bind-address=127.0.0.1:{self._ports['health']}",
            )
        settings = _FOLDER / "kubelet.json"
        settings.write_text(json.dumps(self._kubelet()))
        return (
            *(config, f"--config={settings}", f"--root-dir={_FOLDER}/kubelet"),
            *(f"--hostname-override={NODE}", f"--node-ip={BRIDGE}"),
        )

    def _kubelet(self) -> dict[str, Any]:
        certificate, key = self._authority.issue("kubelet-server", NODE, addresses=[BRIDGE])
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": BRIDGE,
            "port": self._ports["kubelet"],
            "readOnlyPort": 0,
            "healthzPort": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(self._authority.file)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "containerRuntimeEndpoint": f"unix://{_socket()}",
            "podLogsDir": str(_made("log/pods")),
            "volumePluginDir": str(_FOLDER / "kubelet/exec-plugins"),
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "clusterDNS": [BRIDGE],
            "clusterDomain": "cluster.local",
            "evictionHard": dict.fromkeys(
                ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%"
            ),
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 4,
            "syncFrequency": "10s",
        }

    def _kubeconfig(self, name: str, organization: str = "") -> Path:
        user = f"system:node:{NODE}" if name == "kubelet" else name if name == "admin" else f"system:{name}"
        certificate, key = self._authority.issue(user, organization=organization)
        of_cluster = {"server": self.server, "certificate-authority-data": _encoded(self._authority.file)}
        of_user = {"client-certificate-data": _encoded(certificate), "client-key-data": _encoded(key)}
        path = _FOLDER / f"{name}.kubeconfig"
        path.touch(0o600)
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": of_cluster}],
                    "users": [{"name": name, "user": of_user}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
                }
            )
        )
        return path


@contextlib.contextmanager
def machine() -> Generator[Machine]:
    """A cluster, which is taken down however the block ends; what one that was killed left goes first.

    Raises: RuntimeError, if this machine can't be a node: it says what is missing.
    """
    if missing := missing_here():
        raise RuntimeError(f"these tests need a node of Kubernetes, and this machine can't be one: {missing}")
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _take_down()
        _FOLDER.mkdir(mode=0o711)
        running: Machine | None = None
        try:
            running = Machine(programs())
            running.start()
            with answering(BRIDGE, running.service):
                yield running
        finally:
            if running is not None:
                running.stop()
            _take_down()


@contextlib.contextmanager
def in_environment() -> Generator[Machine]:
    """A cluster that `KUBECONFIG` names, and that the `kubectl` on the path is for. Raises: RuntimeError, as `machine`."""
    with machine() as running:
        path = f"{programs()}{os.pathsep}{os.environ['PATH']}"
        with mock.patch.dict(os.environ, {"KUBECONFIG": str(running.kubeconfig), "PATH": path}):
            yield running


def missing_here() -> str:
    """What this machine lacks to be a node, in words; empty if nothing. Debian's packages are installed."""
    if sys.platform != "linux":
        return "it runs no Linux"
    if os.geteuid() != 0:
        return "root is needed, and these tests run as another user"
    try:
        container_programs()
        cni_plugins()
    except (RuntimeError, subprocess.CalledProcessError) as error:
        return str(error)
    groups = Path("/sys/fs/cgroup")
    if not any(os.access(path, os.W_OK) for path in (groups / "memory", groups / "cgroup.procs")):  # of version 1, or 2
        return "control groups can't be written: mount /sys/fs/cgroup for writing (Docker: --privileged)"
    probe = subprocess.run(["ip", "link", "add", _LINK, "type", "bridge"], capture_output=True, text=True, check=False)
    if probe.returncode and "exists" not in probe.stderr:
        return f"no bridge can be made (Docker: --privileged): {probe.stderr.strip()}"
    return ""


def _take_down() -> None:
    """All that a cluster may have left on this machine: also one whose process was killed."""
    if not _FOLDER.exists():
        _tried("ip", "link", "del", _LINK)
        return
    shims = _shims()
    for process in [child for shim in shims for child in shim.children(recursive=True)] + shims + _others():
        _kill(process)
    for mount in sorted(_mounts(), reverse=True):  # the deepest first
        _tried("umount", "--lazy", mount)
    for path in Path("/run/netns").glob("cni-*"):
        if f"inet {_PODS}." in _tried("ip", "netns", "exec", path.name, "ip", "-4", "addr"):
            _tried("ip", "netns", "del", path.name)
    _tried(str(programs() / "kube-proxy"), "--cleanup")
    rules = [("INPUT", "-j", "KUBE-FIREWALL"), ("OUTPUT", "-j", "KUBE-FIREWALL")]
    for rule in (*rules, ("FORWARD", "-i", _LINK, "-o", _LINK, "-j", "ACCEPT")):
        _tried("iptables", "-w", "-D", *rule)
    for table in ("mangle", "nat", "filter"):  # what the proxy's own cleanup leaves
        for chain in ("KUBE-PROXY-CANARY", "KUBE-IPTABLES-HINT", "KUBE-MARK-MASQ", "KUBE-FIREWALL"):
            _tried("iptables", "-w", "-t", table, "-F", chain)
            _tried("iptables", "-w", "-t", table, "-X", chain)
    _tried("ip", "link", "del", _LINK)
    for top in (*Path("/sys/fs/cgroup").glob("kubepods"), *Path("/sys/fs/cgroup").glob("*/kubepods")):
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):  # it is another kubelet's
                Path(folder).rmdir()
    with contextlib.suppress(FileNotFoundError):
        for name, value in json.loads((_FOLDER / "sysctl.json").read_text()).items():
            path = Path("/proc/sys", name)
            if path.read_text() != value:
                path.write_text(value)
    for link in Path("/var/log/containers").glob("*.log"):
        if link.is_symlink() and str(link.readlink()).startswith(f"{_FOLDER}/"):
            link.unlink()
    shutil.rmtree(_FOLDER)


def _shims() -> list[psutil.Process]:
    """Those of this cluster's containerd; what runs in pods descends from them."""
    return [each for each in _others() if each.name().startswith("containerd-shim")]


def _others() -> list[psutil.Process]:
    """Processes whose command line names this cluster's folder."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and any(f"{_FOLDER}/" in word for word in process.cmdline()):
                found.append(process)
    return found


def _mounts() -> list[str]:
    places = (line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
    return [place for place in places if place.startswith(f"{_FOLDER}/")]


def _tried(*words: str) -> str:
    """What a command writes that may fail: what it is to remove may be gone."""
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(5)


def _ctr(*words: str) -> str:
    line = ["ctr", "--address", _socket(), "--namespace", "k8s.io", *words]
    return subprocess.run(line, check=True, capture_output=True, text=True, timeout=300).stdout


def _socket() -> str:
    return f"{_FOLDER}/run/containerd.sock"


def _made(name: str, mode: int = 0o777) -> Path:
    path = _FOLDER / name
    path.mkdir(mode, parents=True, exist_ok=True)
    return path


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def _tail(name: str) -> str:
    return (_FOLDER / "log" / f"{name}.log").read_text()[-2000:]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt), machine() as running:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        print(f"export KUBECONFIG={running.kubeconfig} PATH={programs()}:$PATH", flush=True)
        signal.pause()
