"""This machine as the only node of a control plane that is not Shoal's, with the operator installed."""

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from e2e.clusters.cluster import NODE_OPTIONS
from e2e.clusters.embedded import local
from e2e.clusters.kubectl import kubectl
from e2e.waiting import eventually
from shoal_local.api_client import ApiClient, read_kubeconfig
from shoal_local.apiserver.credentials import make_certificates
from shoal_local.installing import chart_directory, install
from shoal_local.kubelet.runs import MOUNTS_UNAVAILABLE, mount_error
from shoal_local.processes import Process

NODE = "shoal-e2e"


@dataclass(frozen=True)
class Joined:
    """The kubelet, and the forwarder of services."""

    folder: Path
    address: str
    pod_cidr: str
    service_cidr: str
    names: tuple[str, ...] = ("kubelet", "services")
    embedded: bool = False

    @property
    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig."""
        return self.folder / "kubeconfig"

    def start(self) -> None:
        """Start what does not run; return when the node takes pods."""
        for network in (self.pod_cidr, self.service_cidr):
            # Their addresses are this machine's own from now on: pods and the forwarder listen on them.
            subprocess.run(["ip", "route", "replace", "local", network, "dev", "lo"], check=True, timeout=10)
        self._write_certificate()
        for name, command in self._commands().items():
            part = Process(name, self.folder)
            if part.pid is None:
                part.start([sys.executable, "-m", *command])
        eventually(self._is_node_ready, self._last_output)

    def _commands(self) -> dict[str, list[str]]:
        config = ["--kubeconfig", str(self.kubeconfig)]
        node = ["--dir", str(self.folder / "node"), "--node-name", NODE, "--images", str(self.folder / "images.yaml")]
        network = ["--address", self.address, "--pod-cidr", self.pod_cidr]
        # API servers request logs over TLS, and by default accept a self-signed certificate.
        tls = ["--tls-certificate", str(self.folder / "kubelet.pem"), "--tls-key", str(self.folder / "kubelet-key.pem")]
        mounts = [MOUNTS_UNAVAILABLE] if mount_error() else []
        return {
            "kubelet": ["shoal_local.kubelet", *config, *node, *network, *tls, *mounts, *NODE_OPTIONS],
            "services": ["shoal_local.services", *config, "--service-cidr", self.service_cidr],
        }

    def _write_certificate(self) -> None:
        made = make_certificates((self.address,))
        (self.folder / "kubelet.pem").write_text(made.certificate)
        (self.folder / "kubelet-key.pem").write_text(made.key)

    def _is_node_ready(self) -> bool:
        node: dict[str, Any] = json.loads(
            kubectl(self.kubeconfig, "get", "node", NODE, "--output", "json", check=False).stdout or "{}"
        )
        conditions = node.get("status", {}).get("conditions", [])
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        if not ready or node["spec"].get("taints"):
            return False
        port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        try:
            answer = httpx.get(f"https://{self.address}:{port}/healthz", verify=False, trust_env=False)
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    def _last_output(self) -> str:
        return "\n".join(f"{name}: {Process(name, self.folder).last_output()}" for name in self.names)

    def stop(self) -> None:
        """Stop both, and every pod."""
        local("down", "--keep", "--dir", str(self.folder))


def install_operator(kubeconfig: Path) -> None:
    """Apply the chart and nothing else; return when the operator runs."""

    async def main() -> None:
        async with ApiClient(read_kubeconfig(kubeconfig), "shoal-e2e") as client:
            await install(client, chart_directory())

    asyncio.run(main())
