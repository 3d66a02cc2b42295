"""An unmodified kubectl against a real server. The output is that of a Kubernetes cluster."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal_local.apiserver.server import Running
from tests.local.apiserver.cluster import Object, widget, widget_definition
from tests.local.apiserver.kubectl import Kubectl

pytestmark = pytest.mark.integration


def text(*objects: Any) -> str:
    return yaml.safe_dump_all(objects)


@pytest.fixture(scope="module", autouse=True)
def widgets(server: Running, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Define the Widget kind once: discovery is cached by each kubectl."""
    directory = tmp_path_factory.mktemp("crd")
    (directory / "kubeconfig").write_text(server.kubeconfig)
    kubectl = Kubectl(directory / "kubeconfig", directory / "cache", "default")
    kubectl("apply", "-f", "-", stdin=text(widget_definition()))
    kubectl("wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=5s")


def test_the_server_tells_its_version_and_kinds(kubectl: Kubectl) -> None:
    assert "Server Version: v1.37" in kubectl("version")
    kinds = kubectl("api-resources", "--no-headers")
    for line in ("deployments", "widgets", "leases", "endpointslices"):
        assert line in kinds


def test_applying_from_the_client_creates_changes_and_settles(kubectl: Kubectl, deployment: Object) -> None:
    assert kubectl("apply", "-f", "-", stdin=text(deployment)) == "deployment.apps/web created\n"
    assert kubectl("apply", "-f", "-", stdin=text(deployment)) == "deployment.apps/web unchanged\n"
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "web:2"
    assert kubectl("apply", "-f", "-", stdin=text(deployment)) == "deployment.apps/web configured\n"

    image = "jsonpath={.spec.template.spec.containers[0].image} {.metadata.generation}"
    assert kubectl("get", "deploy", "web", "-o", image) == "web:2 2"


def test_a_field_taken_out_of_the_manifest_is_taken_out_of_the_object(kubectl: Kubectl) -> None:
    one = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a"},
        "data": {"x": "1", "y": "2"},
    }
    kubectl("apply", "-f", "-", stdin=text(one))
    kubectl("apply", "-f", "-", stdin=text({**one, "data": {"x": "1"}}))

    assert json.loads(kubectl("get", "cm", "a", "-o", "json"))["data"] == {"x": "1"}


def test_applying_on_the_server_conflicts_until_forced(kubectl: Kubectl, deployment: Object) -> None:
    kubectl("apply", "-f", "-", stdin=text(deployment))
    deployment["spec"]["replicas"] = 5
    command = ("apply", "--server-side", "-f", "-")

    complaint = kubectl.refused(*command, stdin=text(deployment))
    assert 'Apply failed with 1 conflict: conflict with "kubectl-client-side-apply" using apps/v1' in complaint
    assert ": .spec.replicas\n" in complaint
    done = kubectl(*command, "--force-conflicts", stdin=text(deployment))
    assert done == "deployment.apps/web serverside-applied\n"


def test_a_dry_run_says_what_it_would_do_and_does_not(kubectl: Kubectl, deployment: Object) -> None:
    done = kubectl("apply", "--dry-run=server", "-f", "-", stdin=text(deployment))
    assert done == "deployment.apps/web created (server dry run)\n"
    assert 'deployments.apps "web" not found' in kubectl.refused("get", "deploy", "web")


def test_a_diff_shows_the_change(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=text(widget()))
    answer = kubectl.run("diff", "-f", "-", stdin=text(widget(color="green")))

    assert answer.code == 1
    assert "-  color: red" in answer.out
    assert "+  color: green" in answer.out


def test_custom_objects_get_defaults_columns_and_short_names(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=text(widget(parts=[{"name": "p"}])))

    header, row = kubectl("get", "wd").splitlines()
    assert header.split() == ["NAME", "SIZE", "AGE"]
    assert row.split()[:2] == ["w", "3"]
    stored = yaml.safe_load(kubectl("get", "widget", "w", "-o", "yaml"))
    assert stored["spec"] == {
        "size": 3,
        "color": "red",
        "replicas": 1,
        "parts": [{"name": "p", "count": 1}],
    }


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (
            {"size": 30},
            "spec.size: Invalid value: 30: spec.size in body should be less than or equal to 10",
        ),
        (
            {"color": "blue"},
            'spec.color: Unsupported value: "blue": supported values: "red", "green"',
        ),
        (
            {"size": "x"},
            'Invalid value: "string": spec.size in body must be of type integer: "string"',
        ),
        ({"size": None}, "spec.size: Required value"),
        ({"min": 2, "max": 1}, "spec: Invalid value: min must not exceed max"),
        ({"nope": 1}, 'strict decoding error: unknown field "spec.nope"'),
        ({"tags": ["a", "a"]}, 'spec.tags[1]: Duplicate value: "a"'),
    ],
)
def test_bad_custom_objects_are_refused_with_field_and_rule(kubectl: Kubectl, spec: Object, complaint: str) -> None:
    assert complaint in kubectl.refused("apply", "-f", "-", stdin=text(widget(**spec)))


def test_bad_built_in_objects_are_refused_with_field_and_rule(kubectl: Kubectl, deployment: Object) -> None:
    spec = deployment["spec"]
    misspelt = {**deployment, "spec": {**spec, "replcas": 1}}
    assert 'unknown field "spec.replcas"' in kubectl.refused("apply", "-f", "-", stdin=text(misspelt))
    wrong = {**deployment, "spec": {**spec, "replicas": "two"}}
    complaint = kubectl.refused("apply", "-f", "-", stdin=text(wrong))
    assert "cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32" in complaint
    strange = {**deployment, "spec": {**spec, "selector": {"matchLabels": {"app": "x"}}}}
    complaint = kubectl.refused("apply", "-f", "-", stdin=text(strange))
    assert 'Invalid value: {"app":"web"}: `selector` does not match template `labels`' in complaint


def test_scaling_goes_through_the_subresource(kubectl: Kubectl, deployment: Object) -> None:
    kubectl("apply", "-f", "-", stdin=text(deployment))
    kubectl("apply", "-f", "-", stdin=text(widget()))

    assert kubectl("scale", "deploy/web", "--replicas=4") == "deployment.apps/web scaled\n"
    assert kubectl("scale", "widget/w", "--replicas=6") == "widget.example.com/w scaled\n"
    assert kubectl("get", "deploy", "web", "-o", "jsonpath={.spec.replicas}") == "4"
    assert kubectl("get", "wd", "w", "-o", "jsonpath={.spec.replicas}") == "6"


def test_patches_of_all_kinds(kubectl: Kubectl, deployment: Object) -> None:
    kubectl("apply", "-f", "-", stdin=text(deployment))
    strategic = '{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"s"}]}}}}'
    kubectl("patch", "deploy", "web", "-p", strategic)
    kubectl("patch", "deploy", "web", "--type=merge", "-p", '{"metadata":{"labels":{"a":"b"}}}')
    replicas = '[{"op":"replace","path":"/spec/replicas","value":9}]'
    kubectl("patch", "deploy", "web", "--type=json", "-p", replicas)

    names = "jsonpath={.spec.template.spec.containers[*].name} {.metadata.labels.a} {.spec.replicas}"
    assert kubectl("get", "deploy", "web", "-o", names) == "side main b 9"


def test_rollout_status_and_wait_follow_the_object(kubectl: Kubectl, deployment: Object) -> None:
    kubectl("apply", "-f", "-", stdin=text(deployment))
    waiting = subprocess.Popen(
        kubectl.command("rollout", "status", "deploy/web", "--timeout=10s"),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert waiting.stdout
    with waiting, waiting.stdout:
        assert "Waiting for deployment" in waiting.stdout.readline()
        available = {"type": "Available", "status": "True", "reason": "x", "message": "x"}
        counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 2)
        status = {"status": {"observedGeneration": 1, **counts, "conditions": [available]}}
        patch = (
            "patch",
            "deploy",
            "web",
            "--subresource=status",
            "--type=merge",
            "-p",
            json.dumps(status),
        )
        kubectl(*patch)
        assert "successfully rolled out" in waiting.stdout.read()
    assert "condition met" in kubectl("wait", "--for=condition=Available", "deploy/web", "--timeout=5s")
    assert kubectl("get", "deploy").splitlines()[1].split()[:4] == ["web", "2/2", "2", "2"]


def test_deleting_waits_for_finalizers(kubectl: Kubectl) -> None:
    held = widget()
    held["metadata"]["finalizers"] = ["example.com/hold"]
    kubectl("apply", "-f", "-", stdin=text(held))
    kubectl("delete", "wd", "w", "--wait=false")
    assert kubectl("get", "wd", "w", "-o", "jsonpath={.metadata.deletionTimestamp}")

    kubectl("patch", "wd", "w", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    assert "not found" in kubectl.refused("get", "wd", "w")


def test_deleting_a_namespace_takes_all_with_it(kubectl: Kubectl, deployment: Object) -> None:
    kubectl("apply", "-f", "-", stdin=text(deployment, widget()))

    assert "deleted" in kubectl("delete", "namespace", kubectl.namespace, "--timeout=10s")
    assert "No resources found" in kubectl.run("get", "deploy,wd").err


def test_describe_events_and_explain(kubectl: Kubectl, pod: Object) -> None:
    kubectl("apply", "-f", "-", stdin=text(pod))
    uid = kubectl("get", "pod", "one", "-o", "jsonpath={.metadata.uid}")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "one.1"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "one",
            "namespace": kubectl.namespace,
            "uid": uid,
        },
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": "0/1 nodes are available",
        "source": {"component": "scheduler"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2036-01-01T00:00:00Z",
        "count": 2,
    }
    kubectl("create", "-f", "-", stdin=text(event))

    described = kubectl("describe", "pod", "one")
    assert "Service Account:  default" in described
    assert "FailedScheduling" in described
    assert "FailedScheduling   Pod/one   0/1 nodes are available" in kubectl("events")
    assert "Number of desired pods" in kubectl("explain", "deployment.spec.replicas")
    assert "size\t<integer> -required-" in kubectl("explain", "widget.spec")


def test_tables_are_those_of_a_cluster(kubectl: Kubectl, pod: Object, deployment: Object) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80}]},
    }
    kubectl("apply", "-f", "-", stdin=text(pod, deployment, service))

    def columns(kind: str, *options: str) -> list[str]:
        return kubectl("get", kind, *options).splitlines()[0].split()

    assert columns("pods") == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert columns("deploy") == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    assert columns("svc") == ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE"]
    assert columns("pods", "-o", "wide")[5:] == ["IP", "NODE"]
    assert "pod/one" in kubectl("get", "all")
    assert kubectl("get", "pods", "-l", "app=web", "-o", "name") == "pod/one\n"
    assert "No resources found" in kubectl.run("get", "pods", "-l", "app!=web").err
    assert kubectl("get", "pods", "--field-selector=status.phase=Pending", "-o", "name") == "pod/one\n"


def test_a_watch_tells_changes_as_they_come(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=text(widget()))
    command = kubectl.command("get", "wd", "--watch", "-o", "jsonpath={.spec.size}{'\\n'}")
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert watching.stdout
    with watching, watching.stdout:
        assert watching.stdout.readline() == "3\n"
        kubectl("apply", "-f", "-", stdin=text(widget(size=4)))
        assert watching.stdout.readline() == "4\n"
        watching.terminate()


def test_typed_commands_speak_protobuf(kubectl: Kubectl, tmp_path: Path, server: Running) -> None:
    space = kubectl.namespace
    kubectl("create", "serviceaccount", "bot")
    kubectl("create", "configmap", "c", "--from-literal=a=b")
    kubectl("create", "role", "r", "--verb=get,list", "--resource=pods,pods/log")
    kubectl("create", "rolebinding", "b", "--role=r", f"--serviceaccount={space}:bot")
    who = f"--as=system:serviceaccount:{space}:bot"

    assert kubectl("get", "cm", "c", "-o", "jsonpath={.data.a}") == "b"
    assert kubectl("auth", "can-i", "list", "pods", who) == "yes\n"
    assert kubectl.run("auth", "can-i", "list", "secrets", who).out == "no\n"

    token = kubectl("create", "token", "bot", "--duration=1h").strip()
    config = tmp_path / "bot"
    config.write_text(server.kubeconfig_with(token))
    bot = Kubectl(config, tmp_path / "bot-cache", space)
    assert "No resources found" in bot.run("get", "pods").err
    complaint = bot.refused("get", "secrets")
    assert f'cannot list resource "secrets" in API group "" in the namespace "{space}"' in complaint
    config.write_text(server.kubeconfig_with("forged"))
    assert "You must be logged in to the server" in bot.refused("get", "pods")


def test_what_kubectl_creates_by_name_is_read_from_protobuf(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "web", "--image=web:1", "--replicas=2", "--port=80")
    kubectl("create", "service", "clusterip", "web", "--tcp=80:http")
    kubectl("create", "job", "once", "--image=web:1", "--", "true")
    kubectl("create", "ingress", "web", "--rule=web.example/*=web:80")
    kubectl("create", "pdb", "web", "--selector=app=web", "--min-available=50%")
    kubectl("create", "namespace", f"{kubectl.namespace}-two")
    kubectl("create", "secret", "generic", "keys", "--from-literal=a=b")
    kubectl("run", "one", "--image=python", "--env=A=b", "--labels=x=y", "--command", "--", "python", "-V")

    pair = "jsonpath={.spec.replicas} {.spec.template.spec.containers[0].ports}"
    assert kubectl("get", "deploy", "web", "-o", pair) == '2 [{"containerPort":80,"protocol":"TCP"}]'
    assert kubectl("get", "svc", "web", "-o", "jsonpath={.spec.ports[0].targetPort}") == "http"
    assert kubectl("get", "pdb", "web", "-o", "jsonpath={.spec.minAvailable}") == "50%"
    container = json.loads(kubectl("get", "pod", "one", "-o", "jsonpath={.spec.containers[0]}"))
    assert container["command"] == ["python", "-V"]
    assert container["env"] == [{"name": "A", "value": "b"}]


def test_a_list_is_applied_item_by_item_and_checked_by_the_server(kubectl: Kubectl) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}
    items = [config, widget()]
    done = kubectl("apply", "-f", "-", stdin=text({"apiVersion": "v1", "kind": "List", "items": items}))
    assert done == "configmap/a created\nwidget.example.com/w created\n"

    items = [{**config, "data": {"x": "2"}}, widget(nope=1)]
    complaint = kubectl.refused("apply", "-f", "-", stdin=text({"apiVersion": "v1", "kind": "List", "items": items}))
    assert 'unknown field "spec.nope"' in complaint


def test_a_drain_honors_disruption_budgets(kubectl: Kubectl, pod: Object) -> None:
    node = kubectl.namespace
    kubectl("apply", "-f", "-", stdin=text({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}))
    kubectl("create", "pdb", "web", "--selector=app=web", "--min-available=1")
    pod["spec"]["nodeName"] = node
    kubectl("apply", "-f", "-", stdin=text(pod))
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    kubectl("patch", "pod", "one", "--subresource=status", "-p", json.dumps({"status": status}))

    drain = ("drain", node, "--force", "--delete-emptydir-data")
    assert "violate the pod's disruption budget" in kubectl.refused(*drain, "--timeout=1s")
    kubectl("delete", "pdb", "web")
    kubectl(*drain, "--dry-run=server")
    assert not kubectl("get", "pod", "one", "-o", "jsonpath={.metadata.deletionTimestamp}")
    kubectl.refused(*drain, "--timeout=1s", "--grace-period=1")
    assert kubectl("get", "pod", "one", "-o", "jsonpath={.metadata.deletionGracePeriodSeconds}") == "1"
