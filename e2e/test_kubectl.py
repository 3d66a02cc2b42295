"""What a user does with kubectl, besides applying a service and reading it."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from e2e.clients import EXPECTED, ROW, predict
from e2e.clusters.cluster import Cluster
from e2e.clusters.kubectl import KUBECTL
from e2e.waiting import TIMEOUT_S, eventually

SERVICE = {
    "apiVersion": "serving.shoal.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "adder"},
    "spec": {"model": {"uri": "file:///models/adder"}, "rollout": {"drainDelaySeconds": 0}},
}


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Cluster]:
    """Serve one model for tests that only look, or that put back what they change."""
    space = cluster.within("looked-at")
    space.create_namespace()
    try:
        space.apply()
        space.until_ready()
        yield space
    finally:
        # Pods first: a namespace that holds some is looked at again after half of their grace period.
        space.kubectl("delete", "infsvc", "--all")
        eventually(lambda: not space.get("pods"))
        cluster.kubectl("delete", "namespace", "looked-at", f"--timeout={TIMEOUT_S:g}s")


def kubectl_output(served: Cluster, *args: str) -> str:
    return served.kubectl(*args).stdout


def manifest(**spec: object) -> str:
    return yaml.safe_dump({**SERVICE, "spec": {**SERVICE["spec"], **spec}})  # type: ignore[dict-item]


def following(served: Cluster, *args: str) -> subprocess.Popen[str]:
    """Start a kubectl that does not end by itself."""
    command = [str(KUBECTL), "--kubeconfig", str(served.kubeconfig), "--namespace", served.namespace, *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("wide", "the newest spec is served"),
        ("name", "inferenceservice.serving.shoal.dev/adder\n"),
        ("jsonpath={.status.conditions[?(@.type=='Ready')].status}", "True"),
        ("custom-columns=NAME:.metadata.name,URI:.spec.model.uri", "adder   file:///models/adder\n"),
        ("go-template={{.status.replicas}}", "1"),
    ],
)
def test_a_service_is_shown_in_each_form(served: Cluster, output: str, said: str) -> None:
    assert said in kubectl_output(served, "get", "infsvc", "adder", "--output", output)


def test_yaml_and_json_hold_the_same_object(served: Cluster) -> None:
    as_yaml = yaml.safe_load(kubectl_output(served, "get", "infsvc", "adder", "--output", "yaml"))
    assert as_yaml == json.loads(kubectl_output(served, "get", "infsvc", "adder", "--output", "json"))
    assert as_yaml["spec"]["batching"]["maxBatchSize"] == 32
    assert "managedFields" not in as_yaml["metadata"]


def test_describe_shows_conditions_and_events(served: Cluster) -> None:
    printed = kubectl_output(served, "describe", "infsvc", "adder")
    for part in ("the model is loaded and warm", "ClusterInternal", "Events:", "shoal-operator", "RollingOut"):
        assert part in printed
    assert "RollingOut" in kubectl_output(served, "events", "--for", "infsvc/adder")
    assert "inferenceservice/adder" in kubectl_output(served, "get", "events", "--sort-by=.lastTimestamp")


def test_wait_returns_at_once_or_says_that_it_timed_out(served: Cluster) -> None:
    assert "condition met" in kubectl_output(served, "wait", "--for=condition=Ready", "infsvc/adder", "--timeout=5s")
    assert "condition met" in kubectl_output(served, "wait", "--for=jsonpath={.status.readyReplicas}=1", "infsvc/adder")
    done = served.kubectl("wait", "--for=condition=Ready=False", "infsvc/adder", "--timeout=200ms", check=False)
    assert "timed out waiting for the condition" in done.stderr


def test_the_kind_explains_itself(served: Cluster) -> None:
    explained = kubectl_output(served, "explain", "infsvc.spec.batching")
    assert "KIND:       InferenceService" in explained
    assert "maxBatchSize\t<integer>" in explained
    assert "FIELD: className <string>" in kubectl_output(served, "explain", "infsvc.spec.route.ingress.className")
    assert "infsvc" in kubectl_output(served, "api-resources", "--api-group=serving.shoal.dev")
    assert "serving.shoal.dev/v1alpha1" in kubectl_output(served, "api-versions")


def test_logs_of_a_pod_of_a_deployment_and_of_a_label(served: Cluster) -> None:
    pod = served.get("pods")[0]["metadata"]["name"]
    assert "event=listening" in kubectl_output(served, "logs", pod, "--container", "proxy")
    assert "event=model_ready" in kubectl_output(served, "logs", "deployment/adder", "--container", "runtime")
    label = "serving.shoal.dev/inferenceservice=adder"
    printed = kubectl_output(served, "logs", "--selector", label, "--all-containers", "--prefix", "--tail=-1")
    assert f"[pod/{pod}/proxy]" in printed
    assert f"[pod/{pod}/runtime]" in printed
    assert len(kubectl_output(served, "logs", pod, "--container", "runtime", "--tail=1").splitlines()) == 1


def test_followed_logs_grow(namespace: Cluster) -> None:
    talk = "import itertools, time\nfor n in itertools.count(): print('line', n, flush=True); time.sleep(0.05)"
    namespace.kubectl("run", "talker", "--image=python", "--command", "--", "python", "-c", talk)
    namespace.kubectl("wait", "--for=condition=Ready", "pod/talker", f"--timeout={TIMEOUT_S:g}s")
    with following(namespace, "logs", "talker", "--follow") as logs:
        assert logs.stdout
        numbers = [int(logs.stdout.readline().split()[1]) for _ in range(20)]
        logs.terminate()
    assert numbers == list(range(20))
    namespace.kubectl("delete", "pod", "talker", "--grace-period=1")


def test_logs_of_the_run_before_tell_why_it_ended(namespace: Cluster) -> None:
    namespace.apply(model={"uri": "file:///models/broken"})
    label = "serving.shoal.dev/inferenceservice=adder"

    def restarted() -> bool:
        statuses = [
            s for pod in namespace.get("pods", selector=label) for s in pod["status"].get("containerStatuses", [])
        ]
        return any(status["restartCount"] for status in statuses)

    eventually(restarted)
    before = kubectl_output(namespace, "logs", "deployment/adder", "--container", "runtime", "--previous")
    assert "have 10 classes, not 1000" in before


def test_a_restarted_rollout_is_served_and_has_a_history(served: Cluster) -> None:
    before = served.get("pods")[0]["metadata"]["name"]
    revisions = kubectl_output(served, "rollout", "history", "deployment/adder").splitlines()

    served.kubectl("rollout", "restart", "deployment/adder")
    status = kubectl_output(served, "rollout", "status", "deployment/adder", f"--timeout={TIMEOUT_S:g}s")

    assert "successfully rolled out" in status
    assert len(kubectl_output(served, "rollout", "history", "deployment/adder").splitlines()) == len(revisions) + 1
    served.kubectl("wait", "--for=delete", f"pod/{before}", f"--timeout={TIMEOUT_S:g}s")
    assert predict(served) == EXPECTED


def test_a_diff_shows_what_an_edit_would_change(served: Cluster) -> None:
    same = served.kubectl("diff", "--filename", "-", text=manifest(), check=False)
    assert same.returncode == 0, same.stdout
    other = served.kubectl("diff", "--filename", "-", text=manifest(batching={"maxBatchSize": 4}), check=False)
    assert other.returncode == 1
    assert "-    maxBatchSize: 32" in other.stdout
    assert "+    maxBatchSize: 4" in other.stdout


def test_two_appliers_conflict_until_one_forces(namespace: Cluster) -> None:
    apply = ("apply", "--server-side", "--filename", "-")
    namespace.kubectl(*apply, "--field-manager=one", text=manifest(batching={"maxBatchSize": 4}))
    other = manifest(batching={"maxBatchSize": 8})

    refused = namespace.kubectl(*apply, "--field-manager=two", text=other, check=False)
    assert 'conflict with "one"' in refused.stderr
    assert ".spec.batching.maxBatchSize" in refused.stderr
    namespace.kubectl(*apply, "--field-manager=two", "--force-conflicts", text=other)
    assert namespace.get("infsvc", "adder")["spec"]["batching"]["maxBatchSize"] == 8


def test_one_file_holds_many_objects_in_documents_or_in_a_list(namespace: Cluster) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "notes"}, "data": {"a": "b"}}
    documents = yaml.safe_dump_all([config, SERVICE])
    done = namespace.kubectl("apply", "--filename", "-", text=documents)
    assert done.stdout == "configmap/notes created\ninferenceservice.serving.shoal.dev/adder created\n"

    together = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [config, SERVICE]})
    done = namespace.kubectl("apply", "--filename", "-", text=together)
    assert done.stdout == "configmap/notes unchanged\ninferenceservice.serving.shoal.dev/adder unchanged\n"
    done = namespace.kubectl("delete", "--filename", "-", text=together)
    assert done.stdout.count("deleted") == 2


def test_a_kustomization_is_applied_and_pruned(namespace: Cluster, tmp_path: Path) -> None:
    (tmp_path / "service.yaml").write_text(manifest())
    overlay = {"resources": ["service.yaml"], "nameSuffix": "-two", "labels": [{"pairs": {"team": "fish"}}]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))

    namespace.kubectl("apply", "--kustomize", str(tmp_path))

    assert namespace.get("infsvc", "adder-two")["metadata"]["labels"] == {"team": "fish"}
    namespace.until_ready("adder-two")
    assert predict(namespace, "adder-two") == EXPECTED


def test_labels_and_annotations_come_and_go_without_a_rollout(served: Cluster) -> None:
    pods = [pod["metadata"]["uid"] for pod in served.get("pods")]
    served.kubectl("label", "infsvc", "adder", "team=fish")
    served.kubectl("annotate", "infsvc", "adder", "note=a shoal")
    assert kubectl_output(served, "get", "infsvc", "--selector", "team=fish", "--output", "name")
    served.kubectl("label", "infsvc", "adder", "team-")
    served.kubectl("annotate", "infsvc", "adder", "note-")
    assert [pod["metadata"]["uid"] for pod in served.get("pods")] == pods


def test_patches_of_two_types_change_a_service_and_the_third_is_refused(namespace: Cluster) -> None:
    namespace.kubectl("apply", "--filename", "-", text=manifest())
    patch = ("patch", "infsvc", "adder", "--patch")
    namespace.kubectl(*patch, '{"spec":{"batching":{"maxBatchSize":8}}}', "--type=merge")
    namespace.kubectl(*patch, '[{"op":"replace","path":"/spec/batching/inFlight","value":2}]', "--type=json")
    batching = namespace.get("infsvc", "adder")["spec"]["batching"]
    assert (batching["maxBatchSize"], batching["inFlight"]) == (8, 2)
    # Custom kinds have no strategic merge anywhere.
    refused = namespace.kubectl(*patch, '{"spec":{}}', "--type=strategic", check=False)
    assert "application/strategic-merge-patch+json" in refused.stderr
    strategic = '{"spec":{"template":{"metadata":{"annotations":{"seen":"yes"}}}}}'
    eventually(lambda: namespace.get("deployment", "adder"))
    namespace.kubectl("patch", "deployment", "adder", "--patch", strategic, "--type=strategic")


def test_scale_goes_through_the_service(namespace: Cluster) -> None:
    namespace.apply()
    namespace.until_ready()
    namespace.kubectl("scale", "infsvc/adder", "--replicas=2")
    eventually(lambda: (namespace.get("infsvc", "adder")["status"]).get("readyReplicas") == 2)
    refused = namespace.kubectl("scale", "infsvc/adder", "--replicas=1", "--current-replicas=5", check=False)
    assert "Expected replicas to be 5, was 2" in refused.stderr


def test_delete_takes_the_children_or_leaves_them(namespace: Cluster) -> None:
    namespace.apply()
    namespace.until_ready()
    pods = [pod["metadata"]["uid"] for pod in namespace.get("pods")]

    namespace.kubectl("delete", "infsvc", "adder", "--cascade=orphan")
    owners = "jsonpath={.metadata.ownerReferences}"
    eventually(lambda: not kubectl_output(namespace, "get", "deployment", "adder", "--output", owners))
    assert [pod["metadata"]["uid"] for pod in namespace.get("pods")] == pods

    namespace.kubectl("delete", "deployment", "adder", "--cascade=foreground", f"--timeout={TIMEOUT_S:g}s")
    assert not namespace.get("replicasets")
    assert not namespace.get("pods")


def test_permissions_can_be_asked_for(served: Cluster) -> None:
    assert kubectl_output(served, "auth", "can-i", "create", "infsvc") == "yes\n"
    denied = served.kubectl("auth", "can-i", "create", "infsvc", "--as=stranger", check=False)
    assert denied.stdout == "no\n"
    operator = "--as=system:serviceaccount:shoal-system:shoal-operator"
    assert kubectl_output(served, "auth", "can-i", "patch", "infsvc", "--subresource=status", operator) == "yes\n"


def test_objects_are_created_from_the_command_line(namespace: Cluster) -> None:
    namespace.kubectl("create", "deployment", "web", "--image=python", "--", "python", "-m", "http.server")
    status = kubectl_output(namespace, "rollout", "status", "deployment/web", f"--timeout={TIMEOUT_S:g}s")
    assert "successfully rolled out" in status
    namespace.kubectl("expose", "deployment", "web", "--port=80", "--target-port=8000")
    namespace.kubectl("set", "env", "deployment/web", "MODE=fast")
    namespace.kubectl("create", "secret", "generic", "token", "--from-literal=a=b")


def test_a_kind_that_is_not_served_is_said_to_be_missing(namespace: Cluster) -> None:
    namespace.skip_unless_embedded("a real API server has CronJobs")
    often = ("--image=python", "--schedule=* * * * *")
    refused = namespace.kubectl("create", "cronjob", "often", *often, check=False)
    assert "the server could not find the requested resource" in refused.stderr


def test_metrics_are_said_to_be_missing(served: Cluster) -> None:
    assert "Metrics API not available" in served.kubectl("top", "pods", check=False).stderr


def test_a_service_is_reached_through_a_forwarded_port(served: Cluster) -> None:
    served.skip_unless_embedded("the kubelet itself forwards no ports")
    with following(served, "port-forward", "service/adder", ":80", "--address=127.0.0.1") as forwarding:
        assert forwarding.stdout
        try:
            entry = forwarding.stdout.readline().split()[2]
            url = f"http://{entry}/v1/models/adder:predict"
            answer = httpx.post(url, json={"instances": [ROW]}, timeout=TIMEOUT_S, trust_env=False)
        finally:
            forwarding.terminate()
    assert answer.json() == {"predictions": [EXPECTED]}


def test_what_is_not_served_says_what_to_do_instead(served: Cluster) -> None:
    served.skip_unless_embedded("a real API server says of exec what the kubelet says")
    refused = served.kubectl("exec", "deployment/adder", "--container", "proxy", "--", "ls", check=False)
    assert "run the command here" in refused.stderr
