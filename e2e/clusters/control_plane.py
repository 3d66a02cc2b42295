"""A control plane from a folder with etcd, kube-apiserver, kube-controller-manager and kube-scheduler."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.clusters.cluster import Cluster
from e2e.clusters.credentials import ADMIN, CONTROLLERS, SCHEDULER, Credentials
from e2e.clusters.joined import Joined, install_operator
from e2e.clusters.kubectl import kubectl
from e2e.clusters.network import HOST, POD_CIDR, SERVICE_CIDR, own_network
from e2e.waiting import eventually
from shoal_local.processes import Process

URL = f"https://{HOST}:6443"
ETCD = "http://127.0.0.1:2379"
PROGRAMS = {
    "etcd": "etcd",
    "apiserver": "kube-apiserver",
    "controllers": "kube-controller-manager",
    "scheduler": "kube-scheduler",
}


@dataclass(frozen=True)
class ControlPlane:
    """Its processes, and those of its node."""

    programs: Path
    credentials: Credentials
    node: Joined
    embedded: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Return all parts."""
        return (*PROGRAMS, *self.node.names)

    @property
    def folder(self) -> Path:
        """Return where everything is kept."""
        return self.node.folder

    def start(self) -> None:
        """Start what does not run; what asks the API server waits for it, as it gives up soon."""
        arguments = self._arguments()
        for name in ("etcd", "apiserver"):
            self._start(name, arguments[name])
        eventually(self._is_ready, Process("apiserver", self.folder).last_output)
        for name in ("controllers", "scheduler"):
            self._start(name, arguments[name])
        self.node.start()

    def _start(self, name: str, arguments: list[str]) -> None:
        part = Process(name, self.folder)
        if part.pid is None:
            part.start([str(self.programs / PROGRAMS[name]), *arguments])

    def _is_ready(self) -> bool:
        apiserver = Process("apiserver", self.folder)
        assert apiserver.pid is not None, f"the API server ended: {apiserver.last_output()}"
        return kubectl(self.node.kubeconfig, "get", "--raw", "/readyz", check=False).returncode == 0

    def _arguments(self) -> dict[str, list[str]]:
        made = self.credentials
        return {
            "etcd": [
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={ETCD}",
                f"--advertise-client-urls={ETCD}",
                "--unsafe-no-fsync",
            ],
            "apiserver": [
                f"--etcd-servers={ETCD}",
                f"--bind-address={HOST}",
                f"--advertise-address={HOST}",
                "--secure-port=6443",
                f"--service-cluster-ip-range={SERVICE_CIDR}",
                "--authorization-mode=Node,RBAC",
                # The second as OpenShift has it: it asks for the right to set finalizers of an owner.
                "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
                f"--token-auth-file={made.tokens}",
                f"--tls-cert-file={made.certificate}",
                f"--tls-private-key-file={made.key}",
                f"--service-account-issuer={URL}",
                f"--service-account-key-file={made.account_key}",
                f"--service-account-signing-key-file={made.account_key}",
            ],
            "controllers": [
                *self._client(CONTROLLERS),
                "--use-service-account-credentials",
                f"--service-account-private-key-file={made.account_key}",
                f"--root-ca-file={made.authority}",
            ],
            "scheduler": self._client(SCHEDULER),
        }

    def _client(self, user: str) -> list[str]:
        own = self.credentials.kubeconfig(user)
        folder = self.folder / "certificates" / user
        return [f"--kubeconfig={own}", f"--cert-dir={folder}", "--bind-address=127.0.0.1", "--leader-elect=false"]

    def stop(self) -> None:
        """Stop everything, pods included."""
        Process("scheduler", self.folder).stop()
        self.node.stop()
        for name in ("controllers", "apiserver", "etcd"):
            Process(name, self.folder).stop()


@contextmanager
def control_plane(programs: Path, folder: Path) -> Iterator[Cluster]:
    """Run a control plane, one node and the operator; stop them, pods included, at the end."""
    missing = [name for name in PROGRAMS.values() if not (programs / name).exists()]
    assert not missing, f"KUBEBUILDER_ASSETS={programs} has no {', '.join(missing)}"
    credentials = Credentials.make(folder, URL, (HOST, "10.96.0.1"))
    node = Joined(folder, HOST, POD_CIDR, SERVICE_CIDR)
    node.kubeconfig.write_text(credentials.kubeconfig(ADMIN).read_text())
    parts = ControlPlane(programs, credentials, node)
    with own_network():
        try:
            parts.start()
            install_operator(node.kubeconfig)
            yield Cluster(folder, parts)
        finally:
            parts.stop()
