"""The whole cluster with an unmodified kubectl and real processes."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from shoal_local.cluster import Cluster, unready_pods
from tests import plain
from tests.local.apiserver.kubectl import Kubectl
from tests.local.live import apply, eventually, pod, processes_of, restarts_of, state_of, status_of

pytestmark = pytest.mark.integration
Object = dict[str, Any]
SERVE = """
import http.server, os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["GREETING"].encode())
    def log_message(self, *_):
        pass
print("hello from", os.environ["LISTEN"], flush=True)
host, port = os.environ["LISTEN"].split(":")
http.server.HTTPServer((host, int(port)), Handler).serve_forever()
"""


def kill(cluster: Cluster, *names: str) -> None:
    for name in names:
        pid = cluster.parts[name].pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        eventually(lambda part=cluster.parts[name]: part.pid is None)  # type: ignore[misc]


def web(greeting: str, replicas: int = 2) -> list[Object]:
    container = {
        "name": "main",
        "image": "python:3",
        "command": ["python", "-c", SERVE],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "LISTEN", "value": "$(POD_IP):8080"},
            {"name": "GREETING", "value": greeting},
        ],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1},
    }
    labels = {"app": "web"}
    spec = {"terminationGracePeriodSeconds": 5, "containers": [container]}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": labels, "ports": [{"port": 8000, "targetPort": "http"}]},
        },
    ]


def call(kubectl: Kubectl) -> str:
    address = kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
    return plain.get(f"http://{address}:8000/", trust_env=False, timeout=5).text


def test_a_deployment_becomes_processes_that_answer_roll_over_and_go(kubectl: Kubectl) -> None:
    apply(kubectl, *web("one"))
    kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    assert eventually(lambda: call(kubectl)) == "one"
    assert "hello from 127." in kubectl("logs", "deployment/web")
    apply(kubectl, *web("two"))
    kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    assert call(kubectl) == "two"
    assert kubectl("rollout", "history", "deployment/web").count("<none>") == 2
    kubectl("rollout", "undo", "deployment/web")
    kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    assert call(kubectl) == "one"
    kubectl("scale", "deployment/web", "--replicas=1")
    eventually(lambda: len(kubectl("get", "pods", "-o", "name").split()) == 1)
    kubectl("delete", "deployment", "web")
    eventually(lambda: not kubectl("get", "pods", "-o", "name").split())


def test_parts_that_are_killed_find_the_pods_undisturbed(cluster: Cluster, kubectl: Kubectl) -> None:
    apply(kubectl, *web("still here"))
    kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    before = kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}")
    shims = {pid for pid, line in processes_of(cluster).items() if "shim" in line}
    kill(cluster, "apiserver", "controllers", "kubelet", "services")
    cluster.up(["--capacity", "nvidia.com/gpu=1"])
    kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    assert eventually(lambda: call(kubectl)) == "still here"
    assert kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}") == before
    assert {pid for pid, line in processes_of(cluster).items() if "shim" in line} == shims
    restarts = kubectl("get", "pods", "-o", "jsonpath={..restartCount}")
    assert set(restarts.split()) == {"0"}


def test_a_pod_deleted_while_the_kubelet_is_down_ends_when_it_is_back(cluster: Cluster, kubectl: Kubectl) -> None:
    apply(kubectl, pod("one", "sleep 1000"))
    eventually(lambda: "running" in state_of(kubectl, "one"))
    kill(cluster, "kubelet")
    kubectl("delete", "pod", "one", "--wait=false")
    assert [line for line in processes_of(cluster).values() if "shim" in line]
    cluster.up(["--capacity", "nvidia.com/gpu=1"])
    kubectl("wait", "--for=delete", "pod/one", "--timeout=20s")
    eventually(lambda: not [line for line in processes_of(cluster).values() if "shim" in line])


def test_a_pod_that_has_ended_and_is_held_by_a_finalizer_stays_as_it_was(cluster: Cluster, kubectl: Kubectl) -> None:
    made = pod("held", "trap 'exit 3' TERM; while true; do sleep .1; done", restartPolicy="Never")
    made["metadata"]["finalizers"] = ["test/held"]
    apply(kubectl, made)
    eventually(lambda: "running" in state_of(kubectl, "held"))
    kubectl("delete", "pod", "held", "--wait=false")
    kubectl("wait", "pod/held", "--for=jsonpath={.metadata.deletionGracePeriodSeconds}=0", "--timeout=20s")
    before = status_of(kubectl, "held")
    assert (before["phase"], state_of(kubectl, "held")["terminated"]["exitCode"]) == ("Failed", 3)

    kubectl("label", "pod", "held", "seen=once")
    kill(cluster, "kubelet")
    cluster.up(["--capacity", "nvidia.com/gpu=1"])
    kubectl("label", "pod", "held", "seen=twice", "--overwrite")
    # Another pod runs, so the kubelet has processed this one too.
    apply(kubectl, pod("other", "exit 0", restartPolicy="Never"))
    kubectl("wait", "pod/other", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=20s")
    assert status_of(kubectl, "held") == before
    kubectl("patch", "pod", "held", "--type=merge", "--patch", '{"metadata": {"finalizers": null}}')
    kubectl("wait", "--for=delete", "pod/held", "--timeout=20s")


def test_a_pod_that_fits_nowhere_says_what_is_short(kubectl: Kubectl) -> None:
    resources = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    apply(kubectl, pod("big", "true", resources))
    expected = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    query = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}"
    eventually(lambda: kubectl("get", "pod", "big", "-o", query) == expected)
    eventually(lambda: expected in kubectl("get", "events"))


def test_a_container_sees_the_devices_that_it_asked_for(kubectl: Kubectl) -> None:
    script = "echo [$CUDA_VISIBLE_DEVICES]"
    gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    apply(
        kubectl,
        pod("with", script, gpu, restartPolicy="Never"),
        pod("without", script, restartPolicy="Never"),
    )
    for name, expected in (("with", "[0]"), ("without", "[]")):
        kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=20s")
        assert kubectl("logs", name).strip() == expected


def test_an_unknown_image_says_how_to_add_it_and_starts_once_it_is_there(cluster: Cluster, kubectl: Kubectl) -> None:
    apply(kubectl, pod("strange", "echo started; sleep 1000", {"image": "x/strange:1"}))
    waiting = eventually(
        lambda: (w := state_of(kubectl, "strange").get("waiting", {})).get("reason") == "ImagePullBackOff" and w
    )
    assert "strange: {command:" in waiting["message"]
    assert str(cluster.images) in waiting["message"]
    cluster.images.write_text("strange: {}\n")
    eventually(lambda: "running" in state_of(kubectl, "strange"))


def test_crash_leaves_its_last_output(kubectl: Kubectl) -> None:
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    apply(
        kubectl,
        pod("logs", "echo the model is broken >&2; exit 3", fallback),
        pod("file", "echo out of luck > /dev/termination-log; exit 4"),
    )
    for name, code, expected in (("logs", 3, "the model is broken"), ("file", 4, "out of luck")):
        eventually(lambda name=name: "waiting" in state_of(kubectl, name))  # type: ignore[misc]
        status = status_of(kubectl, name)["containerStatuses"][0]
        assert status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        ended = status["lastState"]["terminated"]
        assert (ended["exitCode"], ended["message"]) == (code, expected)
        assert status["restartCount"] == 1
    assert kubectl("logs", "logs", "--previous").strip() == "the model is broken"
    eventually(lambda: "Back-off restarting failed container" in kubectl("get", "events"))


def test_a_command_that_does_not_exist_is_a_start_error(kubectl: Kubectl) -> None:
    apply(kubectl, pod("none", "", {"command": ["/no/such/program"]}, restartPolicy="Never"))
    ended = eventually(lambda: state_of(kubectl, "none").get("terminated"))
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert "cannot run '/no/such/program'" in ended["message"]


def test_init_containers_sidecars_and_volumes_work_together(kubectl: Kubectl) -> None:
    mounts = {"volumeMounts": [{"name": "shared", "mountPath": "/run/shoal-test"}]}
    conf = {"name": "conf", "mountPath": "/conf/inner"}
    trap = "trap 'echo side >> $F; cat $F; exit 0' TERM; touch /tmp/up; while true; do sleep .1; done"
    env = {"env": [{"name": "F", "value": "/run/shoal-test/order"}]}

    def container(name: str, script: str, **more: Any) -> Object:
        return {"name": name, "image": "python", "command": ["sh", "-c", script], **env, **more}

    side = container("side", trap, restartPolicy="Always", **mounts)
    side["volumeMounts"] = [*mounts["volumeMounts"], {"name": "tmp", "mountPath": "/tmp"}]
    main = container("main", "cat $F /conf/inner/key; echo main >> $F")
    main["volumeMounts"] = [*mounts["volumeMounts"], conf]
    made = pod("together", "", restartPolicy="Never")
    made["spec"] |= {
        "initContainers": [container("first", "echo first >> $F", **mounts), side],
        "containers": [main],
        "volumes": [
            {"name": "shared", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {"medium": "Memory"}},
            {"name": "conf", "configMap": {"name": "conf"}},
        ],
    }
    apply(kubectl, made)
    eventually(lambda: 'configmap "conf" not found' in kubectl("get", "events").replace("\\", ""))
    kubectl("create", "configmap", "conf", "--from-literal=key=value")
    kubectl("wait", "pod/together", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=30s")
    assert kubectl("logs", "together", "-c", "main") == "first\nvalue"
    assert kubectl("logs", "together", "-c", "side") == "first\nmain\nside\n"
    assert not Path("/run/shoal-test").exists()
    assert not Path("/conf").exists()


def test_a_process_that_ignores_sigterm_is_killed_when_its_grace_is_over(cluster: Cluster, kubectl: Kubectl) -> None:
    marker = cluster.directory / "stubborn"
    script = f"trap '' TERM; sleep 1000 & while true; do sleep .1; done; : {marker}"
    apply(kubectl, pod("stubborn", script, terminationGracePeriodSeconds=2))
    eventually(lambda: "running" in state_of(kubectl, "stubborn"))
    kubectl("delete", "pod", "stubborn", "--timeout=20s")
    assert not [line for line in processes_of(cluster).values() if str(marker) in line]


def test_liveness_restarts_a_container_that_is_not_well(kubectl: Kubectl) -> None:
    probe = {"httpGet": {"port": 9}, "periodSeconds": 1, "failureThreshold": 1}
    apply(kubectl, pod("sick", "exec sleep 1000", {"livenessProbe": probe}))
    eventually(lambda: restarts_of(kubectl, "sick"))
    eventually(lambda: "Liveness probe failed: ConnectError" in kubectl("get", "events"))


def test_a_run_whose_watcher_is_killed_is_ended_and_started_again(cluster: Cluster, kubectl: Kubectl) -> None:
    apply(kubectl, pod("orphan", f"while true; do sleep .1; done; : {cluster.directory}/orphan"))
    eventually(lambda: "running" in state_of(kubectl, "orphan"))
    mine = {p: line for p, line in processes_of(cluster).items() if f"{cluster.directory}/orphan" in line}
    uid = kubectl("get", "pod", "orphan", "-o", "jsonpath={.metadata.uid}")
    shim = next(p for p, line in processes_of(cluster).items() if "shim" in line and uid in line)
    os.kill(shim, signal.SIGKILL)
    eventually(lambda: restarts_of(kubectl, "orphan") == 1)
    last = status_of(kubectl, "orphan")["containerStatuses"][0]["lastState"]["terminated"]
    assert last["exitCode"] == 137
    assert not set(mine) & set(processes_of(cluster))


def test_logs_follow_a_container_to_its_end(kubectl: Kubectl) -> None:
    apply(kubectl, pod("talk", "for n in 1 2 3; do echo $n; sleep .3; done", restartPolicy="Never"))
    eventually(lambda: "waiting" not in state_of(kubectl, "talk"))
    assert kubectl("logs", "-f", "talk") == "1\n2\n3\n"
    assert kubectl("logs", "talk", "--tail=1") == "3\n"


def test_status_shows_the_parts_and_little_memory(cluster: Cluster) -> None:
    text = cluster.status()
    assert all(f"{name} " in text for name in cluster.parts)
    assert cluster.runs
    assert sum(part.memory_bytes for part in cluster.parts.values()) < 300 * 2**20


def test_the_status_counts_no_pod_as_running_whose_container_crashes(kubectl: Kubectl, cluster: Cluster) -> None:
    apply(kubectl, pod("crashing", "exit 1"), pod("sound", "sleep 1000"))
    eventually(lambda: "CrashLoopBackOff" in kubectl("get", "pods"))
    kubectl("wait", "--for=condition=Ready", "pod/sound", "--timeout=20s")
    assert status_of(kubectl, "crashing")["phase"] == "Running"
    # The restarted container counts as running until it crashes again.
    assert eventually(lambda: re.search(r"1 of 2 running, 1 ready\nnot ready: \S+/crashing\n", cluster.status()))


def test_the_status_says_which_pod_is_not_ready_and_what_needs_it() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    labels = {"app.kubernetes.io/component": "activator"}
    pods: list[dict[str, Any]] = [
        {"metadata": {"name": "a", "namespace": "x"}, "status": {"phase": "Running", "conditions": ready}},
        {"metadata": {"name": "b", "namespace": "x"}, "status": {"phase": "Succeeded"}},
        {"metadata": {"name": "c", "namespace": "x"}, "status": {"phase": "Pending"}},
        {"metadata": {"name": "d", "namespace": "x", "labels": labels}, "status": {"phase": "Running"}},
    ]

    assert unready_pods(pods) == ["x/c", "x/d, which only services at zero replicas need"]
