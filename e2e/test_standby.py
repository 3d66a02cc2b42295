"""Two operators: one writes, and the other takes over when that one is gone."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from e2e.clusters.cluster import OPERATOR, Cluster
from e2e.waiting import eventually

ACCOUNT = "shoal-operator"
TAKE_OVER_S = 20.0


@pytest.fixture
def system(cluster: Cluster) -> Iterator[Cluster]:
    """Give the namespace of the installed operator, which rests meanwhile."""
    found = cluster.within("shoal-system")
    found.kubectl("scale", "deployment/shoal-operator", "--replicas=0")
    try:
        eventually(lambda: not found.get("pods", selector=OPERATOR))
        yield found
    finally:
        found.kubectl("scale", "deployment/shoal-operator", "--replicas=1")
        found.kubectl("rollout", "status", "deployment/shoal-operator", "--timeout=60s")


@pytest.fixture
def kubeconfig(system: Cluster, tmp_path: Path) -> Path:
    """Write a kubeconfig of the chart's service account: what it may not do, these operators cannot."""
    config = yaml.safe_load(system.kubectl("config", "view", "--raw", "--flatten", "--minify").stdout)
    token = system.kubectl("create", "token", ACCOUNT).stdout.strip()
    config["users"][0]["user"] = {"token": token}
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file


@contextmanager
def operator(identity: str, kubeconfig: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run an operator outside the cluster; its log is beside the kubeconfig."""
    environment = {
        **os.environ,
        "SHOAL_OPERATOR_IDENTITY": identity,
        "SHOAL_OPERATOR_NAMESPACE": "shoal-system",
        "SHOAL_OPERATOR_LISTEN_HOST": "$(POD_IP)",
    }
    command = [sys.executable, "-m", "shoal_operator", "--kubeconfig", str(kubeconfig)]
    with (
        log_of(identity, kubeconfig).open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20)


def log_of(identity: str, kubeconfig: Path) -> Path:
    return kubeconfig.with_name(f"{identity}.log")


def holder(system: Cluster) -> str:
    lease = system.get("lease", "shoal-operator") or {"spec": {}}
    return str(lease["spec"].get("holderIdentity", ""))


def led(identity: str, kubeconfig: Path) -> bool:
    return f"leading=true identity={identity}" in log_of(identity, kubeconfig).read_text()


def test_a_standby_takes_over_from_a_killed_operator(system: Cluster, kubeconfig: Path, namespace: Cluster) -> None:
    names = ("one", "two")
    with ExitStack() as stack:
        running = {name: stack.enter_context(operator(name, kubeconfig)) for name in names}
        namespace.apply()
        namespace.until_ready()
        first = holder(system)
        (second,) = set(names) - {first}
        assert [name for name in names if led(name, kubeconfig)] == [first]
        before = namespace.get("deployment", "adder")["metadata"]["uid"]

        running[first].kill()
        killed_s = time.monotonic()
        namespace.kubectl("delete", "deployment", "adder")

        eventually(lambda: holder(system) == second, log_of(second, kubeconfig).read_text, TAKE_OVER_S)
        left_s = TAKE_OVER_S - (time.monotonic() - killed_s)
        eventually(lambda: is_another(namespace, before), log_of(second, kubeconfig).read_text, left_s)
        namespace.until_ready()


def is_another(cluster: Cluster, uid: str) -> bool:
    found = cluster.get("deployment", "adder")
    return bool(found) and found["metadata"]["uid"] != uid
