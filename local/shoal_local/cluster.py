"""The cluster of one machine: starts its parts, stops them, and says how they are."""

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
from typing import Any

import httpx

from shoal_local.api_client import NODES, PODS, ApiClient, ApiError, UnreachableError
from shoal_local.installing import READY_S, chart_folder, install
from shoal_local.kubeconfig import read_kubeconfig
from shoal_local.kubelet.mounting import NO_MOUNTS, mounts_refused
from shoal_local.kubelet.records import Models, known_pods, read_json, write_json
from shoal_local.kubelet.runs import kill_session
from shoal_local.kubelet.volumes import forget_volumes
from shoal_local.objects import Object, dig, is_ready
from shoal_local.processes import Process, lives, stop_all

NODE = "shoal-local"
START_S = 30.0
MAX_GRACE_S = 30.0


class CannotStartError(Exception):
    """A part of the cluster did not come up; the message says which, and what it said last."""


@dataclass(frozen=True, slots=True)
class Network:
    """What one cluster keeps for life: its port, and the addresses of its pods and services."""

    port: int
    pods: str
    services: str

    @classmethod
    def make(cls, folder: Path) -> "Network":
        """Choose a port and networks that another cluster on this machine hardly has."""
        place = zlib.crc32(str(folder).encode())
        block, second = divmod(place % (224 * 32), 224)
        network = f"127.{16 + second}"
        return cls(_free_port(place), f"{network}.{block * 8}.0/22", f"{network}.{block * 8 + 4}.0/22")


def _free_port(place: int) -> int:
    # Below what Linux gives to connections; a port from there could be taken when a stopped cluster starts again.
    for port in (16_384 + place % 16_384, 0):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)) as found:
            return int(found.getsockname()[1])
    raise CannotStartError("no port of 127.0.0.1 is free")


class Cluster:
    """One cluster, in one directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().absolute()
        self.kubeconfig = self.folder / "kubeconfig"
        self.images = self.folder / "images.yaml"
        names = ("apiserver", "controllers", "kubelet", "services")
        self._refusal = self.folder / "mounts.json"
        self.parts = {name: Process(name, self.folder) for name in names}

    def up(self, kubelet_options: list[str]) -> None:
        """Start what does not run; return when the node takes pods.

        Raises CannotStartError: a part ended, or took too long.
        """
        with self._locked():
            network = self._network()
            if kubelet_options:
                # It reads them when it starts; pods do not notice.
                self.parts["kubelet"].stop()
            if self.parts["kubelet"].pid is None:
                write_json(self._refusal, {"why": mounts_refused()})
            if self.mounts_refused:
                kubelet_options = [*kubelet_options, NO_MOUNTS]
            begun: list[Process] = []
            for name, argv in self._commands(network, kubelet_options).items():
                if self.parts[name].pid is None:
                    self.parts[name].start([sys.executable, "-m", f"shoal_local.{name}", *argv])
                begun.append(self.parts[name])
                if name == "apiserver":
                    self._wait_for(self._api_answers, begun)
            self._wait_for(self._node_is_ready, begun)

    def add_models(self, models: Mapping[str, str]) -> None:
        """Show more folders to pods as ``file:///models/NAME``, also while the cluster runs."""
        with self._locked():
            Models(self.folder / "node").add(models)

    @property
    def mounts_refused(self) -> str:
        """Return why containers of the kubelet that runs have no mounts, or '' where they have."""
        return str((read_json(self._refusal) or {}).get("why", ""))

    def _network(self) -> Network:
        file = self.folder / "cluster.json"
        known = read_json(file)
        if known is not None:
            return Network(**known)
        network = Network.make(self.folder)
        file.write_text(json.dumps(asdict(network)))
        return network

    def _commands(self, network: Network, kubelet_options: list[str]) -> dict[str, list[str]]:
        config = ["--kubeconfig", str(self.kubeconfig)]
        listen = ["--listen", f"127.0.0.1:{network.port}", "--service-cidr", network.services]
        node = ["--dir", str(self.folder / "node"), "--images", str(self.images)]
        node += ["--pod-cidr", network.pods, "--node-name", NODE]
        return {
            "apiserver": [*config, *listen, "--snapshot", str(self.folder / "state")],
            "controllers": config,
            "kubelet": [*config, *node, *kubelet_options],
            "services": config,
        }

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one command at a time change the cluster."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _wait_for(self, check: Callable[[], Coroutine[Any, Any, bool]], begun: list[Process]) -> None:
        end_s = time.monotonic() + START_S
        while not asyncio.run(check()):
            for part in begun:
                if part.pid is None:
                    raise CannotStartError(f"{part.name} exited; the end of its log {part.log}:\n{part.last_words()}")
            if time.monotonic() > end_s:
                logs = self.folder / "logs"
                raise CannotStartError(f"the cluster is not ready after {START_S:g} s; see {logs}")
            time.sleep(0.05)

    def _client(self) -> ApiClient:
        return ApiClient(read_kubeconfig(self.kubeconfig), "shoal-local")

    async def _api_answers(self) -> bool:
        if not self.kubeconfig.exists():
            return False
        try:
            async with self._client() as client:
                await client.list(NODES)
        except (ApiError, UnreachableError):
            return False
        return True

    async def _node_is_ready(self) -> bool:
        """Return whether the node is registered and its kubelet answers. The API may remember an earlier one."""
        try:
            async with self._client() as client:
                node = await client.find(NODES, "", NODE)
            if node is None or "daemonEndpoints" not in node.get("status", {}):
                return False
            port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
            # Nothing is encrypted here, and by default every authority of the web is read, 50 ms long.
            async with httpx.AsyncClient(trust_env=False, verify=False) as http:
                answer = await http.get(f"http://127.0.0.1:{port}/healthz", timeout=2.0)
        except (ApiError, UnreachableError, httpx.HTTPError):
            return False
        return answer.status_code == 200

    def install_operator(self, ready_s: float = READY_S) -> None:
        """Install the operator from its chart, and wait until it answers.

        Raises CannotInstallError: it does not answer in time.
        """

        async def main() -> None:
            async with self._client() as client:
                await install(client, chart_folder(), ready_s)

        with self._locked():
            asyncio.run(main())

    def down(self, *, keep: bool) -> None:
        """Stop everything, pods included; ``keep`` leaves the objects for the next ``up``."""
        if not self.folder.exists():
            return
        with self._locked():
            for name in ("controllers", "kubelet"):
                self.parts[name].stop()
            self._stop_pods()
            for name in ("services", "apiserver"):
                self.parts[name].stop()
            for name in () if keep else ("node", "parts", "logs"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
            files = [self.kubeconfig, self._refusal, self.folder / "cluster.json", *self.folder.glob("state*")]
            for path in () if keep else files:
                path.unlink(missing_ok=True)

    def _stop_pods(self) -> None:
        """End the processes of all pods, also those that no kubelet looks after any more."""
        pods = known_pods(self.folder / "node" / "pods")
        shims = [
            known
            for pod in pods
            for run in pod.folder.glob("containers/*/*/shim.json")
            if (known := read_json(run)) and lives(known)
        ]
        graces = [pod.grace_s for pod in pods]
        stop_all(shims, min(max(graces, default=0.0), MAX_GRACE_S), last=SIGUSR1)
        for pod in pods:
            # What still runs although the process that watched over it was killed itself.
            for file in pod.folder.glob("containers/*/*/running.json"):
                running = read_json(file)
                if running and not file.with_name("exit.json").exists():
                    kill_session(running)
            forget_volumes(pod.uid)
            pod.forget()

    def facts(self) -> Object:
        """Return what runs, for programs: parts with memory in bytes, and pods."""
        parts = [
            {"name": name, "running": part.pid is not None, "pid": part.pid, "memory_bytes": part.memory_bytes}
            for name, part in self.parts.items()
        ]
        told: Object = {"parts": parts, "kubeconfig": str(self.kubeconfig)}
        if self.parts["apiserver"].pid is None:
            return told

        async def pods() -> list[Object]:
            async with self._client() as client:
                return list((await client.list(PODS))["items"])

        try:
            return told | {"pods": pod_counts(asyncio.run(pods()))}
        except (ApiError, UnreachableError) as error:
            return told | {"error": f"the API server does not answer: {error}"}

    def status(self) -> str:
        """Return a small table: parts, and what runs."""
        facts = self.facts()
        rows = [("PART", "STATE", "PID", "MEMORY")]
        for part in facts["parts"]:
            memory = f"{part['memory_bytes'] / 2**20:.0f} MiB" if part["running"] else "-"
            state = "running" if part["running"] else "stopped"
            rows.append((part["name"], state, str(part["pid"] or "-"), memory))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        told = "\n".join(lines)
        if pods := facts.get("pods"):
            counted = f"{pods['running']} of {pods['total']} running, {pods['ready']} ready"
            return f"{told}\n\npods: {counted}\nkubeconfig: {self.kubeconfig}\n"
        return f"{told}\n\n{facts['error']}\n" if "error" in facts else f"{told}\n"

    @property
    def runs(self) -> bool:
        """Return whether all parts run."""
        return all(part.pid is not None for part in self.parts.values())

    @property
    def runs_in_part(self) -> bool:
        """Return whether any part runs."""
        return any(part.pid is not None for part in self.parts.values())


def pod_counts(pods: list[Object]) -> dict[str, int]:
    """Return of how many pods all containers run now, and how many are ready.

    The phase says Running also of a pod whose container crashes again and again.
    """
    return {
        "running": sum(_all_run(pod) for pod in pods),
        "ready": sum(is_ready(pod) for pod in pods),
        "total": len(pods),
    }


def _all_run(pod: Object) -> bool:
    states = [container.get("state") or {} for container in dig(pod, "status", "containerStatuses") or []]
    return dig(pod, "status", "phase") == "Running" and all("running" in state for state in states)
