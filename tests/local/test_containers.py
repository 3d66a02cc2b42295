"""What a kubelet does around containers, each part seen through kubectl: probes, hooks, volumes."""

import base64
import json
from datetime import datetime
from typing import Any

import pytest

from shoal_local.apiserver.certificates import make_certificates
from shoal_local.cluster import Cluster
from tests.local.apiserver.kubectl import Kubectl
from tests.local.live import apply, eventually, pod, restarts_of, status_of

pytestmark = pytest.mark.integration
Object = dict[str, Any]

POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
SERVE = """
import http.server, os, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers.get("wanted", "200")
        print("asked for", self.path, wanted, flush=True)
        self.send_response(int(wanted))
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.HTTPServer((os.environ["POD_IP"], 8080), Handler)
if sys.argv[1:]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*sys.argv[1:])
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


def server(*arguments: str, **more: Any) -> Object:
    """Return a container that answers on the pod's port 8080, over TLS when files are given."""
    ports = [{"name": "web", "containerPort": 8080}]
    return {"command": ["python", "-c", SERVE, *arguments], "env": [POD_IP], "ports": ports, **more}


def until_ready(kubectl: Kubectl, name: str) -> None:
    kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=20s")


def until_told(kubectl: Kubectl, message: str) -> None:
    eventually(lambda: message in kubectl("get", "events").replace("\\", ""))


@pytest.mark.parametrize(
    "probe",
    [
        {"tcpSocket": {"port": "web"}},
        {"httpGet": {"port": 8080, "path": "/health", "httpHeaders": [{"name": "wanted", "value": "302"}]}},
        {"httpGet": {"port": "web", "path": "no-slash"}},
    ],
    ids=["tcp", "http-redirect", "http-named-port"],
)
def test_a_probe_that_succeeds_makes_the_pod_ready(kubectl: Kubectl, probe: Object) -> None:
    apply(kubectl, pod("web", "", server(readinessProbe={"periodSeconds": 1, **probe})))
    until_ready(kubectl, "web")


def test_an_https_probe_takes_any_certificate(kubectl: Kubectl) -> None:
    made = make_certificates(("127.0.0.9",))
    data = {"tls.crt": made.certificate, "tls.key": made.key}
    encoded = {name: base64.b64encode(text.encode()).decode() for name, text in data.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls"}, "data": encoded}
    probe = {"httpGet": {"port": "web", "scheme": "HTTPS"}, "periodSeconds": 1}
    mounts = [{"name": "tls", "mountPath": "/tls", "readOnly": True}]
    container = server("/tls/tls.crt", "/tls/tls.key", readinessProbe=probe, volumeMounts=mounts)
    apply(kubectl, secret, pod("web", "", container, volumes=[{"name": "tls", "secret": {"secretName": "tls"}}]))
    until_ready(kubectl, "web")


@pytest.mark.parametrize(
    ("probe", "told"),
    [
        ({"httpGet": {"port": 8080, "httpHeaders": [{"name": "wanted", "value": "404"}]}}, "statuscode: 404"),
        ({"tcpSocket": {"port": 9}}, "Connect call failed"),
        ({"httpGet": {"port": "nowhere"}}, "the container has no port named 'nowhere'"),
        ({"grpc": {"port": 8080}}, "grpc is not supported by the kubelet of shoal local"),
        ({"exec": {"command": ["sleep", "5"]}, "timeoutSeconds": 1}, "timed out after 1 s"),
    ],
    ids=["http", "tcp", "no-port", "grpc", "slow-command"],
)
def test_a_probe_that_fails_says_why_and_keeps_the_pod_unready(kubectl: Kubectl, probe: Object, told: str) -> None:
    apply(kubectl, pod("web", "", server(readinessProbe={"periodSeconds": 1, **probe})))
    until_told(kubectl, "Readiness probe failed")
    until_told(kubectl, told)
    assert not status_of(kubectl, "web")["containerStatuses"][0]["ready"]


def test_a_startup_probe_holds_the_others_back(kubectl: Kubectl) -> None:
    script = "sleep 1; touch /up/started; exec sleep 1000"
    never = {"exec": {"command": ["test", "-f", "/up/started"]}, "periodSeconds": 1}
    mounts = [{"name": "up", "mountPath": "/up"}]
    # Liveness would kill the container in its first second.
    probes = {"startupProbe": {**never, "failureThreshold": 20}, "livenessProbe": {**never, "failureThreshold": 1}}
    apply(kubectl, pod("slow", script, {"volumeMounts": mounts, **probes}, volumes=[{"name": "up", "emptyDir": {}}]))
    until_ready(kubectl, "slow")
    assert restarts_of(kubectl, "slow") == 0


def test_hooks_by_http_and_by_command_run_in_the_container(cluster: Cluster, kubectl: Kubectl) -> None:
    marker = cluster.folder / "said-goodbye"
    start = {"postStart": {"exec": {"command": ["sh", "-c", "echo $POD_IP > /notes/started"]}}}
    stop = {"preStop": {"httpGet": {"port": "web", "path": "/goodbye"}}}
    probe = {"tcpSocket": {"port": "web"}, "periodSeconds": 1}
    mounts = [{"name": "notes", "mountPath": "/notes"}]
    container = server(lifecycle={**start, **stop}, readinessProbe=probe, volumeMounts=mounts)
    container["command"][2] = SERVE.replace("print(", f"open({str(marker)!r}, 'a').write(self.path); print(")
    volumes = [{"name": "notes", "hostPath": {"path": f"{cluster.folder}/notes", "type": "DirectoryOrCreate"}}]
    apply(kubectl, pod("web", "", container, volumes=volumes))
    until_ready(kubectl, "web")
    address = status_of(kubectl, "web")["podIP"]
    eventually((cluster.folder / "notes" / "started").exists)
    assert eventually((cluster.folder / "notes" / "started").read_text) == f"{address}\n"
    kubectl("delete", "pod", "web", "--timeout=20s")
    assert marker.read_text() == "/goodbye"


def test_a_sleeping_hook_holds_sigterm_back(cluster: Cluster, kubectl: Kubectl) -> None:
    order = cluster.folder / "order"
    script = f"trap 'date +%s.%N >> {order}; exit 0' TERM; while true; do sleep .05; done"
    hook = {"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}
    apply(kubectl, pod("sleeper", script, hook, terminationGracePeriodSeconds=10))
    until_ready(kubectl, "sleeper")
    kubectl("delete", "pod", "sleeper", "--wait=false")
    meta = json.loads(kubectl("get", "pod", "sleeper", "--output", "json"))["metadata"]
    kubectl("wait", "--for=delete", "pod/sleeper", "--timeout=20s")
    # Deletion is due at the end of the grace period; it is told in whole seconds, rounded down.
    asked_s = datetime.fromisoformat(meta["deletionTimestamp"]).timestamp() - 10
    assert float(order.read_text()) - asked_s >= 1


def test_a_first_hook_that_fails_ends_the_container_and_is_told(kubectl: Kubectl) -> None:
    hook = {"lifecycle": {"postStart": {"exec": {"command": ["sh", "-c", "echo no luck; exit 7"]}}}}
    apply(kubectl, pod("unlucky", "exec sleep 1000", hook))
    eventually(lambda: restarts_of(kubectl, "unlucky"))
    until_told(kubectl, "command exited with 7: no luck")


def test_a_projected_volume_holds_all_of_its_sources(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "conf", "--from-literal=mode=fast", "--from-literal=unused=x")
    kubectl("create", "secret", "generic", "pass", "--from-literal=word=swim")
    fields = [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "deep/name", "fieldRef": {"fieldPath": "metadata.name"}},
    ]
    sources = [
        {"configMap": {"name": "conf", "items": [{"key": "mode", "path": "conf/mode"}]}},
        {"secret": {"name": "pass"}},
        {"downwardAPI": {"items": fields}},
        {"serviceAccountToken": {"path": "token", "audience": "fish", "expirationSeconds": 600}},
        {"configMap": {"name": "absent", "optional": True}},
    ]
    mounts = [{"name": "all", "mountPath": "/all", "readOnly": True}]
    parts = "; echo; ".join(("cat conf/mode", "cat word", "cat labels", "cat deep/name", "ls", "cut -d. -f1 token"))
    script = f"cd /all; {parts}"
    made = pod("one", script, {"volumeMounts": mounts}, restartPolicy="Never")
    made["metadata"]["labels"] = {"app": "shoal"}
    made["spec"]["volumes"] = [{"name": "all", "projected": {"sources": sources}}]
    apply(kubectl, made)
    kubectl("wait", "pod/one", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=20s")
    told = kubectl("logs", "one").split()
    assert told[:4] == ["fast", "swim", 'app="shoal"', "one"]
    assert told[4:9] == ["conf", "deep", "labels", "token", "word"]
    assert json.loads(base64.urlsafe_b64decode(told[9] + "=="))["alg"]
    assert told[10:] == []


@pytest.mark.usefixtures("mounts")
def test_a_read_only_mount_is_sealed(kubectl: Kubectl) -> None:
    mounts = [{"name": "work", "mountPath": "/all", "readOnly": True}]
    script = "touch /all/x 2>/dev/null || echo sealed"
    volumes = [{"name": "work", "emptyDir": {}}]
    apply(kubectl, pod("one", script, {"volumeMounts": mounts}, restartPolicy="Never", volumes=volumes))
    kubectl("wait", "pod/one", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=20s")
    assert kubectl("logs", "one") == "sealed\n"


def test_volumes_of_the_downward_api_hold_resources_too(kubectl: Kubectl) -> None:
    items = [
        {"path": "limit", "resourceFieldRef": {"containerName": "main", "resource": "limits.memory"}},
        {"path": "ip", "fieldRef": {"fieldPath": "metadata.annotations['note']"}},
    ]
    container = {
        "volumeMounts": [{"name": "about", "mountPath": "/about"}],
        "resources": {"limits": {"memory": "64Mi"}},
    }
    made = pod("one", "cat /about/limit /about/ip", container, restartPolicy="Never")
    made["metadata"]["annotations"] = {"note": " a shoal"}
    made["spec"]["volumes"] = [{"name": "about", "downwardAPI": {"items": items}}]
    apply(kubectl, made)
    kubectl("wait", "pod/one", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=20s")
    assert kubectl("logs", "one") == "67108864 a shoal"


def test_a_sub_path_shows_one_part_of_a_volume(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "conf", "--from-literal=a=first", "--from-literal=b=second")
    name = {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    mounts = [
        {"name": "conf", "mountPath": "/etc/shoal-test/a", "subPath": "a"},
        {"name": "work", "mountPath": "/work-test", "subPathExpr": "pods/$(POD)"},
        {"name": "work", "mountPath": "/whole-test"},
    ]
    script = "cat /etc/shoal-test/a; echo; echo mine > /work-test/file; cat /whole-test/pods/one/file"
    volumes = [{"name": "conf", "configMap": {"name": "conf"}}, {"name": "work", "emptyDir": {}}]
    container = {"env": [name], "volumeMounts": mounts}
    apply(kubectl, pod("one", script, container, restartPolicy="Never", volumes=volumes))
    kubectl("wait", "pod/one", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=20s")
    assert kubectl("logs", "one") == "first\nmine\n"


@pytest.mark.usefixtures("mounts")
def test_a_sub_path_hides_the_rest_of_its_volume(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "conf", "--from-literal=a=first", "--from-literal=b=second")
    mounts = [{"name": "conf", "mountPath": "/etc/shoal-test/a", "subPath": "a"}]
    volumes = [{"name": "conf", "configMap": {"name": "conf"}}]
    container = {"volumeMounts": mounts}
    apply(kubectl, pod("one", "ls /etc/shoal-test", container, restartPolicy="Never", volumes=volumes))
    kubectl("wait", "pod/one", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=20s")
    assert kubectl("logs", "one") == "a\n"


@pytest.mark.parametrize(
    ("volume", "mount", "told"),
    [
        ({"emptyDir": {}}, {"subPath": "../out"}, "sub-path '../out' leads out of it"),
        ({"hostPath": {"path": "/no/such/place", "type": "Directory"}}, {}, "hostPath /no/such/place is no Directory"),
        ({"nfs": {"server": "x", "path": "/"}}, {}, "nfs volumes are not supported by the kubelet of shoal local"),
        ({"secret": {"secretName": "none"}}, {}, 'secret "none" not found'),
    ],
    ids=["sub-path-out", "no-host-path", "unknown-kind", "no-secret"],
)  # fmt: skip
def test_a_volume_that_cannot_be_made_says_why(kubectl: Kubectl, volume: Object, mount: Object, told: str) -> None:
    mounts = [{"name": "v", "mountPath": "/v", **mount}]
    made = pod("one", "true", {"volumeMounts": mounts}, volumes=[{"name": "v", **volume}])
    apply(kubectl, made)
    until_told(kubectl, told)
