"""`shoal local down` leaves nothing, however the parts ended and whatever the directory's path."""

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal_local.cluster import Cluster
from shoal_local.kubelet.records import read_json
from tests.local.apiserver.kubectl import Kubectl
from tests.local.live import apply, eventually, pod, processes_of

pytestmark = pytest.mark.integration

STRANGE = f"a dir, with 'quotes' & $signs/{'long-' * 40}/ünïcode"


@pytest.fixture
def strange(tmp_path: Path) -> Iterator[Cluster]:
    """Start a cluster in a directory whose path needs quoting and is too long for a socket."""
    made = Cluster(tmp_path / STRANGE)
    try:
        made.up(["--capacity", "nvidia.com/gpu=1"])
        yield made
    finally:
        made.down(keep=False)


def start_pods(cluster: Cluster) -> list[int]:
    """Start two pods with volumes, one in memory; return the processes of their containers."""
    kubectl = Kubectl(cluster.kubeconfig, cluster.directory / "cache", "default")
    script = "sleep 1000 & touch /work-test/up; while true; do sleep .1; done"
    mounts = {"volumeMounts": [{"name": "work", "mountPath": "/work-test"}]}
    for name, kind in (("disk", {}), ("memory", {"medium": "Memory"})):
        apply(kubectl, pod(name, script, mounts, volumes=[{"name": "work", "emptyDir": kind}]))
    kubectl("wait", "--for=condition=Ready", "pods", "--all", "--timeout=20s")
    running = [read_json(path) or {} for path in cluster.directory.glob("node/pods/*/containers/*/*/running.json")]
    return [process["process"] for process in running]


def left_of(cluster: Cluster, containers: list[int]) -> list[str]:
    """Return the leftovers: processes, mounts, files in memory, directories."""
    sessions = [pid for pid in containers if _session_lives(pid)]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(cluster.directory.parent) in line]
    memory = [str(path) for path in Path("/dev/shm").glob("shoal-*") if path.name in cluster_uids(cluster)]
    files = [str(path) for path in cluster.directory.iterdir() if path.name not in ("lock", "images.yaml", "cache")]
    return [*map(str, sessions), *processes_of(cluster).values(), *mounts, *memory, *files]


def cluster_uids(cluster: Cluster) -> set[str]:
    return {f"shoal-{path.name}" for path in cluster.directory.glob("node/pods/*")}


def _session_lives(leader: int) -> bool:
    def session(stat: Path) -> int:
        try:
            return int(stat.read_text().rpartition(")")[2].split()[3])
        except OSError:
            return 0

    return any(session(path) == leader for path in Path("/proc").glob("[0-9]*/stat"))


def port_of(cluster: Cluster) -> int:
    return int((read_json(cluster.directory / "cluster.json") or {})["port"])


def test_a_strange_directory_is_as_good_as_any_and_down_leaves_nothing(strange: Cluster) -> None:
    containers, port = start_pods(strange), port_of(strange)
    in_memory = [Path("/dev/shm", uid) for uid in cluster_uids(strange)]
    assert any(path.exists() for path in in_memory)

    strange.down(keep=False)

    assert left_of(strange, containers) == []
    assert not any(path.exists() for path in in_memory)
    socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize(
    "victims",
    [["apiserver", "controllers", "kubelet", "services"], ["kubelet", "shim"], ["shim"]],
    ids=["all-parts", "kubelet-and-watchers", "watchers"],
)
def test_down_leaves_nothing_of_a_cluster_whose_parts_were_killed(strange: Cluster, victims: list[str]) -> None:
    containers, port = start_pods(strange), port_of(strange)
    assert len(containers) == 2
    for pid, line in processes_of(strange).items():
        if any(f"shoal_local.{name}" in line or f".{name} " in line for name in victims):
            os.kill(pid, signal.SIGKILL)

    strange.down(keep=False)

    eventually(lambda: left_of(strange, containers) == [])
    socket.create_server(("127.0.0.1", port)).close()


def test_the_command_prints_a_line_that_a_shell_understands(tmp_path: Path) -> None:
    directory = tmp_path / STRANGE
    command = [sys.executable, "-m", "shoal_local"]
    try:
        done = subprocess.run(
            [*command, "up", "--no-operator", "--dir", str(directory)], capture_output=True, text=True, check=True
        )
        assert shlex.split(done.stdout.splitlines()[-1]) == ["export", f"KUBECONFIG={directory}/kubeconfig"]
    finally:
        subprocess.run([*command, "down", "--dir", str(directory)], check=True)


@pytest.mark.parametrize("ran", [False, True], ids=["the first", "a later"])
def test_ctrl_c_during_up_stops_what_that_up_started_and_nothing_else(tmp_path: Path, *, ran: bool) -> None:
    made = Cluster(tmp_path / "cluster")
    try:
        if ran:
            made.up([])
        command = [sys.executable, "-m", "shoal_local", "up", "--dir", str(made.directory)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as up:
            # The operator is applied last, and takes seconds to become available.
            eventually(lambda: made.runs and "shoal-operator" in _deployments(made))
            up.send_signal(signal.SIGINT)
            said = up.communicate(timeout=40)[1]
        assert up.returncode == 130
        assert ("keeps running: `shoal local down" if ran else "interrupted: stopping what was started") in said
        assert bool(processes_of(made)) == made.runs == ran
    finally:
        made.down(keep=False)


def _deployments(cluster: Cluster) -> str:
    return Kubectl(cluster.kubeconfig, cluster.directory / "cache", "default")("get", "deployments", "-A")
