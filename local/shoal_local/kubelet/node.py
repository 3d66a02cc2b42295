"""This machine as a Node of the cluster: its capacity, its heartbeat, and the hosts file of containers.

The hosts file resolves Services in place of DNS. A change of a Service is written at once; programs read the file at
each lookup.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from shoal_local.api_client import STRATEGIC_PATCH, ApiClient, UnreachableError
from shoal_local.apiserver.errors import ApiError
from shoal_local.informer import Informer
from shoal_local.kubelet.machine import ARCHITECTURE
from shoal_local.objects import Object, condition, is_ready, make_condition, timestamp

logger = logging.getLogger(__name__)
HEARTBEAT_S, LEASE_S = 10.0, 40
NAMESPACE = "kube-node-lease"
MAX_PODS = 250


def gpu_count() -> int:
    """Return the number of NVIDIA GPUs in /dev."""
    return sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia[0-9]*"))


@dataclass(frozen=True, slots=True)
class Node:
    """The Node object of this machine and its Lease."""

    client: ApiClient
    name: str
    address: str
    port: int
    """Port on which the kubelet serves logs."""
    capacity: Mapping[str, str]
    """Resources beside processors, memory and pods."""

    async def run(self) -> None:
        """Register the node, then renew its Lease until cancelled."""
        while True:
            try:
                await self._register()
                await self._renew()
            except (ApiError, UnreachableError) as error:
                logger.info("event=heartbeat_failed node=%s error=%s", self.name, error)
                await asyncio.sleep(1.0)
            else:
                await asyncio.sleep(HEARTBEAT_S)

    async def _register(self) -> None:
        known = await self.client.find("Node", "", self.name)
        if known is None:
            own = {"hostname": self.name, "os": "linux", "arch": ARCHITECTURE}
            labels = {f"kubernetes.io/{name}": value for name, value in own.items()}
            named = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name, "labels": labels}}
            known = await self.client.create({**named, "spec": {}})
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        own = {"cpu": str(os.cpu_count() or 1), "memory": f"{memory // 1024}Ki", "pods": str(MAX_PODS)}
        capacity = {**own, **self.capacity}
        now = timestamp(datetime.now(UTC))
        before = (condition(known, "Ready") if is_ready(known) else None) or {}
        since, beat = before.get("lastTransitionTime", now), before.get("lastHeartbeatTime", now)
        ready = make_condition("Ready", "True", "KubeletReady", "kubelet is posting ready status", since)
        ready["lastHeartbeatTime"] = beat
        status = {
            "capacity": capacity,
            "allocatable": capacity,
            # No Hostname: an API server would prefer it for logs, and no DNS resolves it.
            "addresses": [{"type": "InternalIP", "address": self.address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
            "conditions": [ready],
        }
        # Other writers' conditions do not count as a change.
        old = known.get("status") or {}
        if ready not in old.get("conditions", []) or {**old, **status, "conditions": old["conditions"]} != old:
            await self.client.patch(known, {"status": status}, subresource="status", content_type=STRATEGIC_PATCH)

    async def _renew(self) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": LEASE_S, "renewTime": now}
        meta = {"name": self.name, "namespace": NAMESPACE}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
        try:
            await self.client.patch(lease, {"spec": spec})
        except ApiError as error:
            # 404: the first renewal, or a user deleted the Lease.
            if error.code != 404:
                raise
            await self.client.create(lease)


HOSTS = Path("/etc/hosts")
_SUFFIXES = ("", ".svc", ".svc.cluster.local")


def hosts_text(machine: str, services: Iterable[Object]) -> str:
    """Return ``machine`` and one hosts line per Service with a cluster IP."""
    lines = [machine.rstrip("\n")]
    for service in services:
        address, meta = service["spec"].get("clusterIP"), service["metadata"]
        # Headless services have no address, and their pods' names are not supported.
        if address and address != "None":
            name = f"{meta['name']}.{meta['namespace']}"
            lines.append(" ".join([address, *(name + suffix for suffix in _SUFFIXES)]))
    return "\n".join([*lines, ""])


class HostsFile:
    """The hosts file of containers, rewritten when a Service changes; the caller runs the informer."""

    def __init__(self, client: ApiClient, file: Path) -> None:
        self.services = Informer(client, "Service")
        self.services.listen(lambda _: self._write())
        self._file = file
        self._text = ""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        self._write()

    def _write(self) -> None:
        own = HOSTS.read_text() if HOSTS.exists() else ""
        text = hosts_text(own, self.services.objects.values())
        if text != self._text:
            self._text = text
            # In place: containers have mounted this inode. Never empty: they look up localhost too.
            with self._file.open("r+") as file:
                file.write(text)
                file.truncate()
