"""Two installs of the operator watch one cluster: they say so, do not fight, and one follows the other."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.clients import EXPECTED, predict
from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually

KEEPER = "serving.shoal.dev/operator"
TAKE_OVER_S = 300.0


@contextmanager
def second_install(cluster: Cluster, log: Path) -> Iterator[None]:
    """Run an operator outside the cluster with another Lease and other policies."""
    environment = {
        **os.environ,
        "SHOAL_OPERATOR_NAMESPACE": "default",
        "SHOAL_OPERATOR_LISTEN_HOST": "$(POD_IP)",
        "SHOAL_OPERATOR_ADMIN_NAMESPACES": "default",
    }
    command = [sys.executable, "-m", "shoal_operator", "--kubeconfig", str(cluster.kubeconfig)]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(20)


def keeper(cluster: Cluster) -> str:
    return str(cluster.get("service", "adder")["metadata"]["annotations"].get(KEEPER))


def test_two_installs_do_not_fight_and_one_follows_the_other(namespace: Cluster, tmp_path: Path) -> None:
    namespace.apply()
    namespace.until_ready()
    before = namespace.get("deployment", "adder")
    system = namespace.within("shoal-system")
    log = tmp_path / "second.log"

    with second_install(namespace, log):
        eventually(
            lambda: namespace.condition("adder", "SoleOperator").get("reason") == "AnotherOperator", log.read_text
        )
        described = "the one in default does not write to it"
        eventually(lambda: described in namespace.kubectl("describe", "infsvc", "adder").stdout, log.read_text)
        assert namespace.get("deployment", "adder")["metadata"]["generation"] == before["metadata"]["generation"]
        assert keeper(namespace) == "shoal-system"

        system.kubectl("scale", "deployment/shoal-operator", "--replicas=0")
        try:
            eventually(lambda: keeper(namespace) == "default", log.read_text, TAKE_OVER_S)
            eventually(lambda: not namespace.condition("adder", "SoleOperator"), log.read_text)
        finally:
            system.kubectl("scale", "deployment/shoal-operator", "--replicas=1")
        namespace.until_ready()
        assert predict(namespace) == EXPECTED
