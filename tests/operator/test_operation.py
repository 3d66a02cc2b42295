"""The whole operator as a process, with the chart's permissions, against the embedded API server."""

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart

from shoal_operator.cluster.api_server import ApiServer
from shoal_operator.cluster.connection import connect
from shoal_operator.cluster.objects import object_path
from shoal_operator.errors import ApiError
from shoal_schema.fields.declaring import Json
from shoal_schema.process.environment import SettingsError
from shoal_schema.resource import API_VERSION, PLURAL
from tests.operator.chart.rendering import IMAGES
from tests.operator.samples import MINIMAL, with_fields
from tests.operator.tunnels import tunnels
from tests.ports import free_port

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        importlib.util.find_spec("shoal_local") is None, reason="local/ (the embedded API server) is not here"
    ),
]
ROOT = Path(__file__).parents[2]
SYSTEM = "shoal-system"
PATIENCE_S = 30.0


class Api:
    """The API server as a person with all rights sees it."""

    def request(self, method: str, path: str, body: Json | None = None, **kwargs: str) -> Json:
        async def main() -> Json:
            server = ApiServer(connect)
            try:
                return await server.request(method, path, body, **kwargs)  # type: ignore[arg-type]
            finally:
                await server.close()

        return asyncio.run(main())

    def get(self, path: str) -> Json | None:
        try:
            return self.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def patch(self, path: str, body: Json) -> Json:
        return self.request("PATCH", path, body, kind="application/merge-patch+json")

    def create(self, name: str, spec: Json = MINIMAL) -> None:
        body = {"apiVersion": API_VERSION, "kind": "InferenceService", "metadata": {"name": name}, "spec": spec}
        self.request("POST", service_path(), body)


def service_path(*name: str) -> str:
    return object_path(API_VERSION, PLURAL, "default", *name)


def child(plural: str, name: str) -> str:
    return object_path("apps/v1" if plural == "deployments" else "v1", plural, "default", name)


def eventually(check: Callable[[], Any]) -> Any:
    """Return what ``check`` returns as soon as that is true."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := check()):
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.05)
    return found


@contextmanager
def process(log: Path, *command: str, **environ: str) -> Iterator["subprocess.Popen[bytes]"]:
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path), **environ}
    with (
        log.open("wb") as out,
        subprocess.Popen([sys.executable, *command], stdout=out, stderr=out, env=env) as running,
    ):
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.wait(20)
            except subprocess.TimeoutExpired:
                running.kill()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Run an API server with the chart's objects in it."""
    folder = tmp_path_factory.mktemp("api")
    kubeconfig = folder / "kubeconfig"
    arguments = ("-m", "shoal_local.apiserver", "--listen", "127.0.0.1:0", "--kubeconfig", str(kubeconfig))
    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = str(kubeconfig)
    with process(folder / "log", *arguments):
        served = Api()
        eventually(lambda: answers(served))
        for body in chart_objects():
            served.request("POST", collection(body), body)
        yield served
    os.environ.pop("KUBECONFIG") if before is None else os.environ.update(KUBECONFIG=before)


def answers(api: Api) -> bool:
    try:
        return bool(api.request("GET", "/version"))
    except (ApiError, SettingsError):
        return False


def chart_objects(**values: Any) -> list[Json]:
    """Return the namespace and everything of the chart but the operator itself, and without an activator."""
    values = {"images": IMAGES, "activator": {"enabled": False}, **values}
    with Chart.load(ROOT / "charts/shoal") as chart:
        files = chart.render(values=values, name="shoal", namespace=SYSTEM)
    texts = [text for path, text in files.items() if not path.endswith("NOTES.txt")]
    bodies = [body for text in texts for body in yaml.safe_load_all(text) if body]
    rendered = [body for body in bodies if "helm.sh/hook" not in body["metadata"].get("annotations", {})]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    return [namespace, *(body for body in rendered if body["kind"] != "Deployment")]


def collection(body: Json) -> str:
    plural = f"{body['kind'].lower()}s".replace("ys", "ies")
    root = f"/apis/{body['apiVersion']}" if "/" in body["apiVersion"] else f"/api/{body['apiVersion']}"
    namespace = body["metadata"].get("namespace")
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


def account_kubeconfig(api: Api) -> Json:
    """Return a kubeconfig of the chart's service account."""
    account = object_path("v1", "serviceaccounts", SYSTEM, "shoal-operator", "token")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = api.request("POST", account, review)["status"]["token"]
    config: Json = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    return config


@contextmanager
def operator(
    api: Api, log: Path, identity: str = "one", config: Json | None = None, **more: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run an operator as the chart's service account."""
    kubeconfig = log.with_suffix(".kubeconfig")
    kubeconfig.write_text(yaml.safe_dump(config or account_kubeconfig(api)))
    settings = {"SHOAL_OPERATOR_NAMESPACE": SYSTEM, "SHOAL_OPERATOR_IDENTITY": identity, **more}
    arguments = ("-m", "shoal_operator", "--verbose", "--kubeconfig", str(kubeconfig))
    with process(log, *arguments, **settings) as running:
        yield running


def batch_size(api: Api, name: str) -> str | None:
    deployment = api.get(child("deployments", name))
    if deployment is None:
        return None
    env = deployment["spec"]["template"]["spec"]["containers"][1]["env"]
    return next(str(e["value"]) for e in env if e["name"] == "SHOAL_BATCHING_MAX_BATCH_SIZE")


def has_batch_size(api: Api, name: str, size: str) -> bool:
    return batch_size(api, name) == size


def ready(api: Api, name: str) -> Json:
    return condition(api, name, "Ready")


def condition(api: Api, name: str, kind: str) -> Json:
    service = api.get(service_path(name)) or {}
    conditions = service.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == kind), {})


def test_a_service_gets_its_objects_and_keeps_them(api: Api, tmp_path: Path) -> None:
    with operator(api, tmp_path / "log"):
        api.create("cat")
        eventually(lambda: ready(api, "cat").get("reason") == "RollingOut")
        assert api.get(child("services", "cat"))

        api.request("DELETE", child("services", "cat"))
        eventually(lambda: api.get(child("services", "cat")))
        api.patch(child("deployments", "cat"), {"spec": {"replicas": 5}})
        eventually(lambda: (api.get(child("deployments", "cat")) or {})["spec"]["replicas"] == 1)
        api.patch(service_path("cat"), {"spec": {"batching": {"maxBatchSize": 8}}})
        eventually(lambda: batch_size(api, "cat") == "8")
        api.patch(service_path("cat", "scale"), {"spec": {"replicas": 3}})
        eventually(lambda: (api.get(child("deployments", "cat")) or {})["spec"]["replicas"] == 3)


def test_a_foreign_key_in_a_selector_and_a_changed_label_are_put_right(api: Api, tmp_path: Path) -> None:
    with operator(api, tmp_path / "log"):
        api.create("fox")
        eventually(lambda: ready(api, "fox").get("reason") == "RollingOut")
        wanted = (api.get(child("services", "fox")) or {})["spec"]
        labels = {"metadata": {"labels": {"serving.shoal.dev/inferenceservice": "dog"}}}
        api.patch(child("services", "fox"), {**labels, "spec": {"selector": {"tier": "gold"}}})
        eventually(lambda: (api.get(child("services", "fox")) or {})["spec"] == wanted)
        api.patch(child("services", "fox"), {"spec": {"ports": [*wanted["ports"], {"name": "b", "port": 9090}]}})
        eventually(lambda: (api.get(child("services", "fox")) or {})["spec"] == wanted)


def test_what_changed_while_no_operator_ran_is_put_right_and_then_nothing_is_written(api: Api, tmp_path: Path) -> None:
    with operator(api, tmp_path / "first.log") as first:
        api.create("dog")
        eventually(lambda: ready(api, "dog").get("reason") == "RollingOut")
        first.send_signal(signal.SIGKILL)
    api.patch(service_path("dog"), {"spec": {"batching": {"maxBatchSize": 4}}})

    with operator(api, tmp_path / "second.log"):
        eventually(lambda: batch_size(api, "dog") == "4")
        eventually(lambda: ready(api, "dog")["observedGeneration"] == 2)
    with operator(api, tmp_path / "third.log"):
        eventually(lambda: "service=default/dog outcome=done" in (tmp_path / "third.log").read_text())
    writes = [line for line in (tmp_path / "third.log").read_text().splitlines() if " write=" in line]
    assert writes == []


@pytest.mark.parametrize(
    ("namespaces", "lease"),
    [("", (SYSTEM, "shoal-operator")), ("default", ("default", "shoal-operator-heartbeat"))],
    ids=["cluster", "namespaced"],
)
def test_watches_receive_the_heartbeat_in_any_namespace(
    api: Api, tmp_path: Path, namespaces: str, lease: tuple[str, str]
) -> None:
    log = tmp_path / "log"
    for body in chart_objects(watchNamespaces=[namespaces]) if namespaces else []:
        if body["metadata"].get("namespace") == namespaces:
            api.request("POST", collection(body), body)
    with operator(api, log, SHOAL_OPERATOR_WATCH_NAMESPACES=namespaces):
        eventually(lambda: "watches=heard" in log.read_text())
        assert api.get(object_path("coordination.k8s.io/v1", "leases", *lease))


def by_plugin(config: Json, folder: Path) -> Json:
    """Return the same kubeconfig, whose token now comes from a plugin."""
    user = config["users"][0]["user"]
    version = "client.authentication.k8s.io/v1"
    credential = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": user["token"]}}
    (folder / "credential.json").write_text(json.dumps(credential))
    plugin = {"apiVersion": version, "command": "cat", "args": [str(folder / "credential.json")]}
    return {**config, "users": [{"name": config["users"][0]["name"], "user": {"exec": plugin}}]}


def test_everything_goes_through_the_kubeconfigs_proxy_and_watches_that_break_go_on(api: Api, tmp_path: Path) -> None:
    with tunnels() as proxy:
        config = by_plugin(account_kubeconfig(api), tmp_path)
        config["clusters"][0]["cluster"]["proxy-url"] = proxy.url
        with operator(api, tmp_path / "log", config=config):
            api.create("ant")
            eventually(lambda: ready(api, "ant").get("reason") == "RollingOut")
            for size in (3, 5):
                before = proxy.opened
                proxy.cut()
                api.patch(service_path("ant"), {"spec": {"batching": {"maxBatchSize": size}}})
                eventually(partial(has_batch_size, api, "ant", str(size)))
                assert proxy.opened > before
            api.request("DELETE", child("services", "ant"))
            eventually(lambda: api.get(child("services", "ant")))


def gateway_definition() -> Json:
    names = {"kind": "HTTPRoute", "listKind": "HTTPRouteList", "plural": "httproutes", "singular": "httproute"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    group = "gateway.networking.k8s.io"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"httproutes.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


@pytest.mark.parametrize("namespaces", ["", "default"], ids=["cluster", "namespaced"])
def test_a_gateway_api_that_is_installed_later_is_noticed_and_watched(
    api: Api, tmp_path: Path, namespaces: str
) -> None:
    name = "gnu" if namespaces else "elk"
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    route = object_path("gateway.networking.k8s.io/v1", "httproutes", "default", name)
    spec = with_fields(MINIMAL, route={"httpRoute": {"parentRefs": [{"name": "public"}]}})
    with operator(api, tmp_path / "log", SHOAL_OPERATOR_WATCH_NAMESPACES=namespaces):
        api.create(name, spec)
        eventually(lambda: ready(api, name).get("reason") == "GatewayApiMissing")
        api.request("POST", definitions, gateway_definition())
        try:
            eventually(lambda: api.get(route))
            eventually(lambda: ready(api, name).get("reason") == "RollingOut")
            api.request("DELETE", route)
            eventually(lambda: api.get(route))
        finally:
            api.request("DELETE", service_path(name))
            api.request("DELETE", f"{definitions}/httproutes.gateway.networking.k8s.io")


def test_a_spec_that_only_the_deployment_refuses_is_reported_in_a_condition(api: Api, tmp_path: Path) -> None:
    with operator(api, tmp_path / "log"):
        api.create("typo", with_fields(MINIMAL, pod={"affinity": {"nodeAffinitie": {}}}))
        condition = eventually(lambda: ready(api, "typo"))

    assert condition["reason"] == "InvalidSpec"
    assert "nodeAffinitie" in condition["message"]


def test_service_of_another_owner_is_left_alone(api: Api, tmp_path: Path) -> None:
    foreign = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "bird"}, "spec": {"ports": [{"port": 81}]}}
    api.request("POST", object_path("v1", "services", "default"), foreign)
    with operator(api, tmp_path / "log"):
        api.create("bird")
        eventually(lambda: ready(api, "bird").get("reason") == "NameTaken")
        eventually(lambda: api.get(child("deployments", "bird")))

    service = api.get(child("services", "bird"))
    assert service is not None
    assert service["spec"]["ports"][0]["port"] == 81
    assert "ownerReferences" not in service["metadata"]


def peers_of(api: Api, name: str) -> str:
    """Return under which name the pods of a service look for one another, if they do."""
    containers = (api.get(child("deployments", name)) or {})["spec"]["template"]["spec"]["containers"]
    [proxy] = [each for each in containers if each["name"] == "proxy"]
    return next((each["value"] for each in proxy["env"] if each["name"] == "SHOAL_PROXY_PEERS"), "")


@pytest.mark.parametrize(("first", "second"), [("emu", "emu-peers"), ("auk-peers", "auk")])
def test_a_service_that_is_called_as_anothers_headless_service_lives_beside_it(
    api: Api, tmp_path: Path, first: str, second: str
) -> None:
    short, long = sorted((first, second), key=len)
    with operator(api, tmp_path / "log"):
        api.create(first)
        eventually(lambda: api.get(child("deployments", first)))
        api.create(second)
        eventually(lambda: condition(api, short, "PeersFound").get("reason") == "NameTaken")
        eventually(lambda: ready(api, long).get("reason") == "RollingOut")

    service = api.get(child("services", long)) or {}
    assert service["metadata"]["ownerReferences"][0]["name"] == long
    assert service["spec"]["clusterIP"] != "None"
    assert (peers_of(api, short), ready(api, short)["reason"]) == ("", "RollingOut")
    assert peers_of(api, long) == f"{long}-peers.default.svc:8080"


def test_a_strangers_service_of_the_peers_name_is_left_alone_and_missed_when_it_goes(api: Api, tmp_path: Path) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "yak-peers"},
        "spec": {"ports": [{"port": 81}]},
    }
    api.request("POST", object_path("v1", "services", "default"), foreign)
    with operator(api, tmp_path / "log"):
        api.create("yak")
        told_s = eventually(lambda: condition(api, "yak", "PeersFound"))
        assert (told_s["status"], told_s["reason"]) == ("False", "NameTaken")
        assert ready(api, "yak")["reason"] == "RollingOut"
        assert peers_of(api, "yak") == ""
        api.request("DELETE", child("services", "yak-peers"))
        eventually(lambda: peers_of(api, "yak"))
        eventually(lambda: not condition(api, "yak", "PeersFound"))


def test_a_standby_writes_nothing_and_follows_at_once_after_a_clean_stop(api: Api, tmp_path: Path) -> None:
    standby_log = tmp_path / "standby.log"
    with operator(api, tmp_path / "leader.log", "leader") as leader:
        eventually(lambda: "leading=true" in (tmp_path / "leader.log").read_text())
        with operator(api, standby_log, "standby"):
            api.create("cow")
            eventually(lambda: ready(api, "cow"))
            assert " write=" not in standby_log.read_text()
            leader.terminate()
            started_s = time.monotonic()
            eventually(lambda: "leading=true" in standby_log.read_text())
            assert time.monotonic() - started_s < 10
            api.patch(service_path("cow"), {"spec": {"batching": {"maxBatchSize": 2}}})
            eventually(lambda: batch_size(api, "cow") == "2")


def runtime_image(deployment: Json) -> str:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return next(str(container["image"]) for container in containers if container["name"] == "runtime")


def test_an_install_that_finds_another_leaves_its_services_alone_and_both_say_so(api: Api, tmp_path: Path) -> None:
    settings = {"SHOAL_OPERATOR_NAMESPACE": "default", "SHOAL_OPERATOR_RUNTIME_IMAGE": "another/runtime"}
    arguments = ("-m", "shoal_operator", "--verbose", "--kubeconfig", os.environ["KUBECONFIG"])
    with operator(api, tmp_path / "keeper.log"):
        api.create("owl")
        eventually(lambda: ready(api, "owl").get("reason") == "RollingOut")
        before = eventually(lambda: api.get(child("deployments", "owl")))
        with process(tmp_path / "second.log", *arguments, **settings):
            eventually(lambda: any("the one in default does not write to it" in text for text in reported(api, "owl")))
            sole = eventually(lambda: condition(api, "owl", "SoleOperator"))
            eventually(lambda: "claimed-by" not in str(api.get(child("services", "owl"))))

    after = api.get(child("deployments", "owl"))
    assert after is not None
    assert (sole["status"], sole["reason"]) == ("False", "AnotherOperator")
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert runtime_image(after) == runtime_image(before)


def fetched(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_leader_and_standby_are_ready_with_working_watches(api: Api, tmp_path: Path) -> None:
    listens = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    api.create("jay")
    with operator(api, tmp_path / "leader.log", "leader", SHOAL_OPERATOR_METRICS_LISTEN=listens[0]):
        eventually(lambda: "leading=true" in (tmp_path / "leader.log").read_text())
        with operator(api, tmp_path / "standby.log", "standby", SHOAL_OPERATOR_METRICS_LISTEN=listens[1]):
            for listen in listens:
                eventually(partial(is_ready, listen))
            leader, standby = (fetched(f"http://{listen}/metrics")[1] for listen in listens)

    assert "shoal_operator_leader 1.0" in leader
    assert "shoal_operator_leader 0.0" in standby
    assert 'shoal_operator_services{ready="False",reason="RollingOut"}' in leader
    assert 'shoal_operator_api_requests_total{method="PATCH",status="200"}' in leader
    assert 'shoal_operator_looks_total{outcome="done"} 0.0' in standby


def is_ready(listen: str) -> bool:
    return fetched(f"http://{listen}/readyz") == (200, "ready\n")


def reported(api: Api, name: str) -> list[str]:
    """Return the messages of a service's Events."""
    events = (api.get(object_path("v1", "events", "default")) or {}).get("items", [])
    return [event["message"] for event in events if event["involvedObject"]["name"] == name]
