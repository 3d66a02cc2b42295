"""Start, stop and status of the processes of a local cluster."""

import asyncio
import contextlib
import fcntl
import json
import shutil
import socket
import sys
import time
import zlib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGUSR1
from typing import Any, TypeVar

import httpx

from shoal_local.api_client import ApiClient, UnreachableError, read_kubeconfig
from shoal_local.apiserver.errors import ApiError
from shoal_local.installing import READY_S, StartError, chart_directory, install
from shoal_local.kubelet.records import Models, known_pods, read_json
from shoal_local.kubelet.runs import MOUNTS_UNAVAILABLE, kill_session, mount_error
from shoal_local.kubelet.shim import write_json
from shoal_local.kubelet.volumes import remove_volumes
from shoal_local.objects import Object, dig, has_ended, is_ready
from shoal_local.processes import Process, is_alive, stop_all

Result = TypeVar("Result")
NODE = "shoal-local"
START_S = 30.0
MAX_GRACE_S = 30.0
"""Upper bound of the grace period that `down` gives to pods."""


@dataclass(frozen=True, slots=True)
class Network:
    """A cluster's API port, pod network and service network, set once."""

    port: int
    pods: str
    services: str

    @classmethod
    def make(cls, directory: Path) -> "Network":
        """Choose a port and networks by a hash of the directory's path.

        Raises StartError: no port of 127.0.0.1 is free.
        """
        place = zlib.crc32(str(directory).encode())
        # Each network is a /22 of 127.0.0.0/8: 224 second bytes, from 127.16, with 32 pairs of networks in each.
        block, second = divmod(place % (224 * 32), 224)
        network = f"127.{16 + second}"
        # 16384 to 32767 is below the ephemeral ports of Linux: while the cluster is stopped, no connection takes it.
        for port in (16_384 + place % 16_384, 0):
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)) as found:
                free = int(found.getsockname()[1])
                return cls(free, f"{network}.{block * 8}.0/22", f"{network}.{block * 8 + 4}.0/22")
        raise StartError("no port of 127.0.0.1 is free")


class Cluster:
    """A cluster whose state is in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.expanduser().absolute()
        self.kubeconfig = self.directory / "kubeconfig"
        self.images = self.directory / "images.yaml"
        names = ("apiserver", "controllers", "kubelet", "services")
        self._mounts_file = self.directory / "mounts.json"
        self.parts = {name: Process(name, self.directory) for name in names}

    def up(self, kubelet_options: list[str]) -> None:
        """Start the parts that are stopped; return when the node accepts pods.

        Raises StartError: a part exited, or the cluster is not ready after `START_S`.
        """
        with self._locked():
            file = self.directory / "cluster.json"
            if (stored := read_json(file)) is not None:
                network = Network(**stored)
            else:
                network = Network.make(self.directory)
                file.write_text(json.dumps(asdict(network)))
            if kubelet_options:
                # Options are read at the start. Pods keep running while the kubelet restarts.
                self.parts["kubelet"].stop()
            if self.parts["kubelet"].pid is None:
                write_json(self._mounts_file, {"why": mount_error()})
            if self.mount_error:
                kubelet_options = [*kubelet_options, MOUNTS_UNAVAILABLE]
            started: list[Process] = []
            for name, argv in self._commands(network, kubelet_options).items():
                if self.parts[name].pid is None:
                    self.parts[name].start([sys.executable, "-m", f"shoal_local.{name}", *argv])
                started.append(self.parts[name])
                if name == "apiserver":
                    # The other parts exit without an API server.
                    self._wait_for(self._api_is_reachable, started)
            self._wait_for(self._node_is_ready, started)

    def add_models(self, models: Mapping[str, str]) -> None:
        """Make directories visible to all new pods as ``file:///models/NAME``."""
        with self._locked():
            Models(self.directory / "node").add(models)

    @property
    def mount_error(self) -> str:
        """Return why the running kubelet cannot make mounts, or '' if it can."""
        return str((read_json(self._mounts_file) or {}).get("why", ""))

    def _commands(self, network: Network, kubelet_options: list[str]) -> dict[str, list[str]]:
        config = ["--kubeconfig", str(self.kubeconfig)]
        listen = ["--listen", f"127.0.0.1:{network.port}", "--service-cidr", network.services]
        node = ["--dir", str(self.directory / "node"), "--images", str(self.images)]
        node += ["--pod-cidr", network.pods, "--node-name", NODE]
        return {
            "apiserver": [*config, *listen, "--snapshot", str(self.directory / "state")],
            "controllers": config,
            "kubelet": [*config, *node, *kubelet_options],
            "services": config,
        }

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the directory: one command at a time changes the cluster."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("w") as file:
            # The kernel releases it when the process ends, however that happens.
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _wait_for(self, check: Callable[[], bool], started: list[Process]) -> None:
        end_s = time.monotonic() + START_S
        while not check():
            for part in started:
                if part.pid is None:
                    raise StartError(f"{part.name} exited. The end of its log {part.log}:\n{part.last_output()}")
            if time.monotonic() > end_s:
                logs = self.directory / "logs"
                raise StartError(f"the cluster is not ready after {START_S:g} s. See {logs}")
            time.sleep(0.05)

    def _request(self, use: Callable[[ApiClient], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of a function of a client of the API server."""

        async def main() -> Result:
            async with ApiClient(read_kubeconfig(self.kubeconfig), "shoal-local") as client:
                return await use(client)

        return asyncio.run(main())

    def _api_is_reachable(self) -> bool:
        try:
            return self.kubeconfig.exists() and bool(self._request(lambda client: client.list("Node")))
        except (ApiError, UnreachableError):
            return False

    def _node_is_ready(self) -> bool:
        """Return whether the kubelet responds; its Node object may be outdated."""
        try:
            node = self._request(lambda client: client.find("Node", "", NODE))
            port = dig(node, "status", "daemonEndpoints", "kubeletEndpoint", "Port")
            # Plain HTTP: verify=False skips reading the system's certificate authorities, which takes 50 ms.
            with httpx.Client(trust_env=False, verify=False, timeout=2.0) as http:
                return bool(port) and http.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        except (ApiError, UnreachableError, httpx.HTTPError):
            return False

    def install_operator(self, ready_s: float = READY_S) -> None:
        """Install the operator from its chart and wait until it is available.

        Raises StartError: the operator is not available after ``ready_s``.
        """
        with self._locked():
            self._request(lambda client: install(client, chart_directory(), ready_s))

    def down(self, *, keep: bool) -> None:
        """Stop the cluster and its pods; ``keep`` the objects for the next ``up``."""
        if not self.directory.exists():
            return
        with self._locked():
            # No controller may replace, and no kubelet restart, the pods that are stopped next.
            for name in ("controllers", "kubelet"):
                self.parts[name].stop()
            # Also the pods that an earlier kubelet left behind.
            pods = known_pods(self.directory / "node" / "pods")
            shims = [
                known
                for pod in pods
                for run in pod.directory.glob("containers/*/*/shim.json")
                if (known := read_json(run)) and is_alive(known)
            ]
            # The grace period of the slowest pod, then SIGUSR1, at which a shim kills its container.
            graces = [pod.grace_s for pod in pods]
            stop_all(shims, min(max(graces, default=0.0), MAX_GRACE_S), last=SIGUSR1)
            for pod in pods:
                # A container may outlive a shim that was killed.
                for file in pod.directory.glob("containers/*/*/running.json"):
                    running = read_json(file)
                    if running and not file.with_name("exit.json").exists():
                        kill_session(running)
                remove_volumes(pod.uid)
                pod.remove()
            for name in ("services", "apiserver"):
                self.parts[name].stop()
            for name in () if keep else ("node", "parts", "logs"):
                shutil.rmtree(self.directory / name, ignore_errors=True)
            own = ("kubeconfig", "mounts.json", "cluster.json", "state*")
            for path in () if keep else [path for pattern in own for path in self.directory.glob(pattern)]:
                path.unlink(missing_ok=True)

    def facts(self) -> Object:
        """Return the cluster's state as data: parts, memory in bytes, pod counts."""
        parts = [
            {"name": name, "running": part.pid is not None, "pid": part.pid, "memory_bytes": part.memory_bytes}
            for name, part in self.parts.items()
        ]
        facts: Object = {"parts": parts, "kubeconfig": str(self.kubeconfig)}
        if self.parts["apiserver"].pid is None:
            return facts
        try:
            pods = self._request(lambda client: client.list("Pod"))["items"]
            return facts | {"pods": pod_counts(pods), "not_ready": unready_pods(pods)}
        except (ApiError, UnreachableError) as error:
            return facts | {"error": f"the API server does not respond: {error}"}

    def status(self) -> str:
        """Return the cluster's state as text: a table of parts, and pod counts."""
        facts = self.facts()
        rows = [("PART", "STATE", "PID", "MEMORY")]
        for part in facts["parts"]:
            memory = f"{part['memory_bytes'] / 2**20:.0f} MiB" if part["running"] else "-"
            state = "running" if part["running"] else "stopped"
            rows.append((part["name"], state, str(part["pid"] or "-"), memory))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        if pods := facts.get("pods"):
            counts = f"{pods['running']} of {pods['total']} running, {pods['ready']} ready"
            missing = "".join(f"\nnot ready: {line}" for line in facts["not_ready"])
            return f"{table}\n\npods: {counts}{missing}\nkubeconfig: {self.kubeconfig}\n"
        return f"{table}\n\n{facts['error']}\n" if "error" in facts else f"{table}\n"

    @property
    def runs(self) -> bool:
        """Return whether all parts of the cluster run."""
        return all(part.pid is not None for part in self.parts.values())


def unready_pods(pods: list[Object]) -> list[str]:
    """Return namespace and name of each pod that is not ready and has not ended."""
    lines = []
    for pod in pods:
        if is_ready(pod) or has_ended(pod):
            continue
        component = (dig(pod, "metadata", "labels") or {}).get("app.kubernetes.io/component")
        # It waits for the operator, and so becomes ready after `up` has returned.
        note = ", which only services at zero replicas need" if component == "activator" else ""
        lines.append(f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}{note}")
    return sorted(lines)


def pod_counts(pods: list[Object]) -> dict[str, int]:
    """Return the numbers of pods: running, ready and in total.

    A pod counts as running if all its containers run: its phase stays Running while a container crashes repeatedly.
    """
    running = 0
    for pod in pods:
        states = [container.get("state") or {} for container in dig(pod, "status", "containerStatuses") or []]
        running += dig(pod, "status", "phase") == "Running" and all("running" in state for state in states)
    return {"running": running, "ready": sum(is_ready(pod) for pod in pods), "total": len(pods)}
