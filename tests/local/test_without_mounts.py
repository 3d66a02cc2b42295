"""The cluster on a machine that refuses mounts, as in a default container: containers get paths instead."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal_local.cluster import Cluster
from shoal_local.installing import StartError
from tests.local.apiserver.kubectl import Kubectl
from tests.local.live import apply, eventually, pod, state_of

pytestmark = pytest.mark.integration
CONFINED = [sys.executable, "-m", "tests.confined", sys.executable, "-m", "shoal_local"]
TOKEN = """
import json, os, pathlib, sys, tempfile
kubeconfig = json.loads(pathlib.Path(os.environ["KUBECONFIG"]).read_text())
assert kubeconfig["users"][0]["user"]["token"]
print(tempfile.gettempdir(), sys.argv[1], sep="\\n")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        done = subprocess.run(
            [*CONFINED, "up", "--dir", str(made.directory)], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        refusal = "unshare: Operation not permitted"
        assert done.stderr.startswith(f"shoal: cannot mount volumes on this machine ({refusal}): ")
        assert done.stderr.count("\n") == 1
        yield made
    finally:
        made.down(keep=False)


def test_the_operator_answers_once_up_returns(cluster: Cluster, kubectl: Kubectl) -> None:
    query = "jsonpath={.items[*].status.containerStatuses[*]['ready','restartCount']}"
    operator = ("--selector", "app.kubernetes.io/component=operator")
    assert kubectl("get", "pods", "-n", "shoal-system", *operator, "-o", query) == "true 0"


def test_containers_share_volumes_by_the_paths_that_they_are_told(kubectl: Kubectl) -> None:
    mounts = [{"name": "shared", "mountPath": "/run/shoal-test"}, {"name": "conf", "mountPath": "/conf/inner"}]
    env = [{"name": "F", "value": "/run/shoal-test/order"}]
    common = {"image": "python", "volumeMounts": mounts, "env": env}
    script = "cat $F /conf/inner/key; echo; echo gone > /dev/termination-log; cd /run/shoal-test && sleep 1000"
    made = pod("together", script, common)
    first = {"name": "first", **common, "command": ["sh", "-c", "echo first > /run/shoal-test/order"]}
    made["spec"]["initContainers"] = [first]
    made["spec"]["volumes"] = [{"name": "shared", "emptyDir": {}}, {"name": "conf", "configMap": {"name": "conf"}}]
    kubectl("create", "configmap", "conf", "--from-literal=key=value")
    apply(kubectl, made)
    kubectl("wait", "pod/together", "--for=condition=Ready", "--timeout=20s")
    assert kubectl("logs", "together", "-c", "main") == "first\nvalue\n"
    assert not Path("/run/shoal-test").exists()
    assert not Path("/conf").exists()


def test_a_pod_has_a_token_and_a_short_temporary_folder_of_its_own(kubectl: Kubectl) -> None:
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    container = {"command": ["python", "-c", TOKEN, "/tmp/here"], "volumeMounts": mounts}
    apply(kubectl, pod("one", "", container, restartPolicy="Never", volumes=[{"name": "tmp", "emptyDir": {}}]))
    eventually(lambda: state_of(kubectl, "one").get("terminated"))
    uid = kubectl("get", "pod", "one", "-o", "jsonpath={.metadata.uid}")
    assert kubectl("logs", "one").split() == [f"/tmp/shoal-{uid}/tmp", f"/tmp/shoal-{uid}/tmp/here"]
    kubectl("delete", "pod", "one")
    eventually(lambda: not os.path.lexists(f"/tmp/shoal-{uid}"))


def test_a_later_up_says_the_same_and_keeps_what_runs(cluster: Cluster) -> None:
    before = {name: part.pid for name, part in cluster.parts.items()}
    command = [sys.executable, "-m", "shoal_local", "up", "--dir", str(cluster.directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.startswith("shoal: cannot mount volumes on this machine")
    assert {name: part.pid for name, part in cluster.parts.items()} == before


def test_an_operator_that_does_not_answer_is_told_with_its_last_words(tmp_path: Path) -> None:
    made = Cluster(tmp_path / "broken")
    try:
        made.up([])
        made.images.write_text("shoal/operator: {command: [sh, -c, 'echo first; echo out of luck >&2; exit 3']}\n")
        with pytest.raises(StartError) as raised:
            made.install_operator(ready_s=5)
    finally:
        made.down(keep=False)
    message = str(raised.value)
    assert message.startswith("the operator is not available after 5 s\n")
    assert "CrashLoopBackOff" in message
    assert "out of luck" in message
    assert "kubectl -n shoal-system describe pods" in message
