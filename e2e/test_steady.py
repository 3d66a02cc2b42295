"""A service stays Ready at every moment while only the number of its pods changes."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.clusters.cluster import Cluster
from e2e.clusters.kubectl import KUBECTL
from e2e.waiting import eventually


@contextmanager
def watching(cluster: Cluster, log: Path) -> Iterator[None]:
    """Record every version of the service that the API server reports."""
    command = [str(KUBECTL), f"--kubeconfig={cluster.kubeconfig}", f"--namespace={cluster.namespace}"]
    command += ["get", "infsvc", "adder", "--watch", "--output=json"]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out) as running:
        try:
            yield
        finally:
            running.terminate()


def versions(log: Path) -> list[dict[str, Any]]:
    decoder, text, found = json.JSONDecoder(), log.read_text().strip(), []
    while text:
        try:
            each, end = decoder.raw_decode(text)
        except ValueError:  # the last was cut off
            break
        found.append(each)
        text = text[end:].lstrip()
    return found


def test_a_service_that_scales_up_and_down_is_ready_in_every_status(namespace: Cluster, tmp_path: Path) -> None:
    namespace.apply(scaling={"minReplicas": 1, "maxReplicas": 3})
    namespace.until_ready()
    with watching(namespace, tmp_path / "log"):
        eventually(lambda: versions(tmp_path / "log"))
        for replicas in (2, 3, 1, 2):
            namespace.kubectl("scale", "infsvc/adder", f"--replicas={replicas}")
            namespace.until_ready()
            eventually(lambda: namespace.get("infsvc", "adder")["status"]["readyReplicas"] == replicas)  # noqa: B023

    statuses = [
        (each["status"]["replicas"], condition["status"], condition["reason"])
        for each in versions(tmp_path / "log")
        for condition in each["status"]["conditions"]
        if condition["type"] == "Ready"
    ]
    assert len(statuses) > 8
    assert {(status, reason) for _, status, reason in statuses} == {("True", "Ready")}, statuses
