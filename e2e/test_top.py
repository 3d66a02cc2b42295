"""``shoal top --cluster`` and ``shoal dashboard --cluster``: through kubectl and the operator, to every pod."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from e2e.clients import EXPECTED, predict
from e2e.clusters.cluster import Cluster
from e2e.clusters.kubectl import KUBECTL
from e2e.waiting import eventually


@contextmanager
def shoal(cluster: Cluster, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command with the cluster's kubeconfig."""
    with subprocess.Popen(
        [sys.executable, "-m", "shoal", *words, "--cluster", "--namespace", cluster.namespace, "--interval", "1"],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": f"{KUBECTL.parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


FORWARDS = "the kubelet itself forwards no ports, by which a cluster is looked at"


def top(cluster: Cluster) -> Any:
    with shoal(cluster, "top", "--once", "--json") as process:
        output, _ = process.communicate(timeout=60)
    return json.loads(output)["services"]


def test_a_service_of_a_fixed_number_is_seen_with_its_pods_and_its_words(namespace: Cluster) -> None:
    namespace.skip_unless_embedded(FORWARDS)
    namespace.apply(replicas=2)
    namespace.until_ready()
    assert predict(namespace) == EXPECTED

    def seen() -> bool:
        [service] = top(namespace)
        assert (service["name"], service["wanted"], service["state"]) == (f"{namespace.namespace}/adder", 2, "Ready")
        [look] = service["looks"]
        return bool((look["pods"], look["silent"], look["asked_per_s"]) == (2, 0, 0.0))

    eventually(seen, lambda: str(top(namespace)))


def test_the_page_shows_the_cluster_and_explains_a_pod(namespace: Cluster) -> None:
    namespace.skip_unless_embedded(FORWARDS)
    namespace.apply()
    namespace.until_ready()

    with shoal(namespace, "dashboard", "--port", "0") as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        name = f"{namespace.namespace}/adder"
        eventually(
            lambda: any(each["name"] == name and each["cells"][1] == "1" for each in document(url)["services"]),
            lambda: str(document(url)),
        )

        def explained() -> bool:
            said = httpx.get(f"{url}/explain", params={"service": name}, timeout=30).json()["sentences"]
            return bool(said[0].startswith("Pod adder-") and said[1] == "Model adder.")

        eventually(explained, lambda: str(document(url)))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def document(url: str) -> Any:
    return httpx.get(f"{url}/data", timeout=30).json()
