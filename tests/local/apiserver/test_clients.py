"""The official Python client and kopf against a real server; logs come from a fake kubelet."""

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import kopf
import kubernetes.client
import kubernetes.config
import kubernetes.dynamic
import kubernetes.watch
import pytest
import yaml

from shoal_local.apiserver.server import Running, running_server
from tests.local.apiserver.cluster import Object, widget, widget_definition
from tests.local.apiserver.kubectl import Kubectl

pytestmark = pytest.mark.integration
# Its type hints require model objects; it accepts dictionaries too.
client: Any = kubernetes.client
config: Any = kubernetes.config
dynamic: Any = kubernetes.dynamic
watch: Any = kubernetes.watch


def api_client(text: str) -> Any:
    return config.new_client_from_config_dict(yaml.safe_load(text))


@pytest.fixture
def api(server: Running) -> Iterator[Any]:
    with api_client(server.kubeconfig) as found:
        yield found


def test_the_official_client_creates_lists_watches_and_deletes(api: Any, kubectl: Kubectl) -> None:
    core = client.CoreV1Api(api)
    space = kubectl.namespace
    made = core.create_namespaced_config_map(space, {"metadata": {"name": "a"}, "data": {"x": "1"}})
    listed = core.list_namespaced_config_map(space)
    version = made.metadata.resource_version
    core.patch_namespaced_config_map("a", space, {"data": {"x": "2"}})
    core.delete_namespaced_config_map("a", space)

    events = []
    stream = watch.Watch()
    for event in stream.stream(core.list_namespaced_config_map, space, resource_version=version, timeout_seconds=5):
        events.append((event["type"], event["object"].data))
        if event["type"] == "DELETED":
            stream.stop()

    assert {item.metadata.name for item in listed.items} == {"a", "kube-root-ca.crt"}
    assert events == [("MODIFIED", {"x": "2"}), ("DELETED", {"x": "2"})]


def test_a_stale_write_is_a_conflict(api: Any, kubectl: Kubectl) -> None:
    core = client.CoreV1Api(api)
    stale = core.create_namespaced_config_map(kubectl.namespace, {"metadata": {"name": "a"}})
    core.patch_namespaced_config_map("a", kubectl.namespace, {"data": {"x": "2"}})
    stale.data = {"x": "3"}

    # Not `as raised`: the error would keep its connection open until the garbage collector runs.
    with pytest.raises(client.ApiException, match=r"(?s)\(409\).*the object has been modified"):
        core.replace_namespaced_config_map("a", kubectl.namespace, stale)


def test_the_dynamic_client_applies_on_the_server(api: Any, kubectl: Kubectl, deployment: Object) -> None:
    deployments = dynamic.DynamicClient(api).resources.get(api_version="apps/v1", kind="Deployment")

    made = deployments.server_side_apply(body=deployment, namespace=kubectl.namespace, field_manager="me")

    assert made.metadata.managedFields[0].manager == "me"


def test_an_account_may_do_what_its_role_says_and_no_more(api: Any, server: Running, kubectl: Kubectl) -> None:
    core, rbac, space = client.CoreV1Api(api), client.RbacAuthorizationV1Api(api), kubectl.namespace
    core.create_namespaced_service_account(space, {"metadata": {"name": "op"}})
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]
    rbac.create_namespaced_role(space, {"metadata": {"name": "r"}, "rules": rules})
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    subjects = [{"kind": "ServiceAccount", "name": "op", "namespace": space}]
    rbac.create_namespaced_role_binding(space, {"metadata": {"name": "b"}, "roleRef": ref, "subjects": subjects})
    request = {"spec": {"audiences": [], "expirationSeconds": 600}}
    token = core.create_namespaced_service_account_token("op", space, request).status.token

    with api_client(server.kubeconfig_with(token)) as other:
        mine = client.CoreV1Api(other)
        assert mine.list_namespaced_config_map(space).items
        account = f"system:serviceaccount:{space}:op"
        expected = rf"(?s)\(403\).*{account}.* cannot list resource .*secrets.* in the namespace .*{space}"
        with pytest.raises(client.ApiException, match=expected):
            mine.list_namespaced_secret(space)
        core.delete_namespaced_service_account("op", space)
        with pytest.raises(client.ApiException, match=r"\(401\)"):
            mine.list_namespaced_config_map(space)


class FakeKubelet(BaseHTTPRequestHandler):
    """Serves one line, and with ``follow`` a second one on request."""

    more = threading.Event()
    requested: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.requested.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"first line\n")
        if "follow=true" in self.path:
            self.more.wait(5)
            self.wfile.write(b"second line\n")

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""


@contextmanager
def kubelet() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeKubelet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_logs_come_from_the_kubelet_as_they_grow(api: Any, kubectl: Kubectl, pod: Object) -> None:
    core, space = client.CoreV1Api(api), kubectl.namespace
    core.create_namespaced_pod(space, pod)
    node = f"node-{space}"
    core.create_node({"metadata": {"name": node}})
    assert kubectl("logs", "one") == ""
    binding = {"metadata": {"name": "one"}, "target": {"kind": "Node", "name": node}}
    core.create_namespaced_pod_binding("one", space, binding, _preload_content=False)
    with kubelet() as port:
        address = [{"type": "InternalIP", "address": "127.0.0.1"}]
        endpoint = {"kubeletEndpoint": {"Port": port}}
        core.patch_node_status(node, {"status": {"addresses": address, "daemonEndpoints": endpoint}})
        assert kubectl("logs", "one", "--tail=1") == "first line\n"
        assert FakeKubelet.requested[-1] == f"/containerLogs/{space}/one/main?tailLines=1"
        assert "container nope is not valid for pod one" in kubectl.refused("logs", "one", "-c", "nope")
        following = subprocess.Popen(kubectl.command("logs", "-f", "one"), stdout=subprocess.PIPE, text=True)
        assert following.stdout
        with following, following.stdout:
            assert following.stdout.readline() == "first line\n"
            FakeKubelet.more.set()
            assert following.stdout.readline() == "second line\n"


def test_kopf_sees_every_change_of_a_custom_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that kopf logs in by the kubeconfig, discovers kinds, lists, watches and patches."""
    seen: list[tuple[str | None, int]] = []

    async def operate(server: Running) -> None:
        registry, stop, ready = kopf.OperatorRegistry(), asyncio.Event(), asyncio.Event()

        kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)

        @kopf.on.event("widgets.example.com", registry=registry)
        async def changed(type: str | None, spec: Any, patch: Any, **_: Any) -> None:
            seen.append((type, spec["size"]))
            patch.status["phase"] = f"size {spec['size']}"
            if type == "DELETED":
                stop.set()

        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        operator = kopf.operator(
            registry=registry,
            settings=settings,
            clusterwide=True,
            standalone=True,
            stop_flag=stop,
            ready_flag=ready,
        )
        async with asyncio.timeout(15), asyncio.TaskGroup() as group:
            group.create_task(operator)
            await ready.wait()
            await asyncio.to_thread(play, server)

    def play(server: Running) -> None:
        with api_client(server.kubeconfig) as api:
            custom = client.CustomObjectsApi(api)
            where = ("example.com", "v1", "default", "widgets")
            custom.create_namespaced_custom_object(*where, widget())
            stream = watch.Watch()
            for event in stream.stream(custom.list_namespaced_custom_object, *where, timeout_seconds=10):
                if event["object"].get("status", {}).get("phase") == "size 3":
                    stream.stop()
            custom.delete_namespaced_custom_object(*where, "w")

    with running_server(bookmark_interval_s=0.2) as server:
        config_file = tmp_path / "kubeconfig"
        config_file.write_text(server.kubeconfig)
        monkeypatch.setenv("KUBECONFIG", str(config_file))
        with api_client(server.kubeconfig) as api:
            client.ApiextensionsV1Api(api).create_custom_resource_definition(widget_definition())
        asyncio.run(operate(server))

    assert seen[0] in (("ADDED", 3), (None, 3))
    assert ("MODIFIED", 3) in seen
    assert seen[-1] == ("DELETED", 3)
