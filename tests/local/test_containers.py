"""Probes, hooks and volumes of containers, observed through kubectl."""

import base64
import json
from typing import Any

import pytest

from shoal_local.apiserver.credentials import make_certificates
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
    """Return a container that serves HTTP on the pod's port 8080, over TLS if files are given."""
    ports = [{"name": "web", "containerPort": 8080}]
    return {"command": ["python", "-c", SERVE, *arguments], "env": [POD_IP], "ports": ports, **more}


def until_ready(kubectl: Kubectl, name: str) -> None:
    kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=20s")


def until_event_says(kubectl: Kubectl, message: str) -> None:
    eventually(lambda: message in kubectl("get", "events").replace("\\", ""))


@pytest.mark.parametrize(
    "probe",
    [
        {"httpGet": {"port": 8080, "path": "/health", "httpHeaders": [{"name": "wanted", "value": "302"}]}},
        {"httpGet": {"port": "web", "path": "no-slash"}},
    ],
    ids=["http-redirect", "http-named-port"],
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
    ("probe", "message"),
    [
        ({"httpGet": {"port": 8080, "httpHeaders": [{"name": "wanted", "value": "404"}]}}, "statuscode: 404"),
        ({"httpGet": {"port": 9}}, "ConnectError"),
        ({"httpGet": {"port": "nowhere"}}, "'nowhere'"),
        ({"grpc": {"port": 8080}}, "grpc is not supported"),
        ({"exec": {"command": ["true"]}}, "exec is not supported"),
    ],
    ids=["http", "closed", "no-port", "grpc", "command"],
)
def test_a_probe_that_fails_says_why_and_keeps_the_pod_unready(kubectl: Kubectl, probe: Object, message: str) -> None:
    apply(kubectl, pod("web", "", server(readinessProbe={"periodSeconds": 1, **probe})))
    until_event_says(kubectl, "Readiness probe failed")
    until_event_says(kubectl, message)
    assert not status_of(kubectl, "web")["containerStatuses"][0]["ready"]


def test_a_startup_probe_holds_the_others_back(kubectl: Kubectl) -> None:
    slow = server()
    slow["command"] = ["sh", "-c", 'sleep 1; exec "$@"', "sh", *slow["command"]]
    probe = {"httpGet": {"port": "web"}, "periodSeconds": 1}
    # Liveness would kill the container in its first second.
    probes = {"startupProbe": {**probe, "failureThreshold": 20}, "livenessProbe": {**probe, "failureThreshold": 1}}
    apply(kubectl, pod("slow", "", {**slow, **probes}))
    until_ready(kubectl, "slow")
    assert restarts_of(kubectl, "slow") == 0


def test_a_container_with_hooks_is_not_started_and_says_why(kubectl: Kubectl) -> None:
    apply(kubectl, pod("hooked", "true", {"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}))
    until_event_says(kubectl, "lifecycle hooks are not supported")


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
    lines = kubectl("logs", "one").split()
    assert lines[:4] == ["fast", "swim", 'app="shoal"', "one"]
    assert lines[4:9] == ["conf", "deep", "labels", "token", "word"]
    assert json.loads(base64.urlsafe_b64decode(lines[9] + "=="))["alg"]
    assert lines[10:] == []


@pytest.mark.usefixtures("mounts")
def test_a_read_only_mount_is_sealed(kubectl: Kubectl) -> None:
    mounts = [{"name": "work", "mountPath": "/all", "readOnly": True}]
    script = "touch /all/x 2>/dev/null || echo sealed"
    volumes = [{"name": "work", "emptyDir": {}}]
    apply(kubectl, pod("one", script, {"volumeMounts": mounts}, restartPolicy="Never", volumes=volumes))
    kubectl("wait", "pod/one", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=20s")
    assert kubectl("logs", "one") == "sealed\n"


@pytest.mark.parametrize(
    ("volume", "mount", "message"),
    [
        ({"emptyDir": {}}, {"subPath": "part"}, "sub-paths are not supported"),
        ({"hostPath": {"path": "/no/such/place", "type": "Directory"}}, {}, "/no/such/place is not a Directory"),
        ({"nfs": {"server": "x", "path": "/"}}, {}, "nfs volumes are not supported"),
        ({"secret": {"secretName": "none"}}, {}, 'secret "none" not found'),
    ],
    ids=["sub-path", "no-host-path", "unknown-kind", "no-secret"],
)  # fmt: skip
def test_a_volume_that_cannot_be_made_says_why(kubectl: Kubectl, volume: Object, mount: Object, message: str) -> None:
    mounts = [{"name": "v", "mountPath": "/v", **mount}]
    made = pod("one", "true", {"volumeMounts": mounts}, volumes=[{"name": "v", **volume}])
    apply(kubectl, made)
    until_event_says(kubectl, message)
