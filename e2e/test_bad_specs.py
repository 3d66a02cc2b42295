"""Specs that are refused, and specs that are admitted and cannot work."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from e2e.clients import EXPECTED, predict
from e2e.clusters.cluster import MODELS, Cluster
from e2e.waiting import eventually


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"scaling": {"minReplicas": 3, "maxReplicas": 2}}, ["spec.scaling", "minReplicas must not exceed"]),
        ({"rollout": {"maxSurge": 0, "maxUnavailable": 0}}, ["spec.rollout", "cannot both be 0"]),
        ({"batching": {"maxBatchSize": 64}, "queue": {"maxRows": 8}}, ["queue.maxRows must hold at least one batch"]),
        ({"batching": {"maxBatchSise": 8}}, ['unknown field "spec.batching.maxBatchSise"']),
        ({"runtime": {"device": "TPU"}}, ["spec.runtime.device", "Unsupported value", "CUDA"]),
        ({"model": {"uri": "ftp://models/adder"}}, ["spec.model.uri", "must begin with one of file://"]),
        ({"model": {"uri": "HTTPS://models/adder"}}, ["spec.model.uri", "in lower case"]),
        ({"model": {"uri": "http://[zz]/adder"}}, ["spec.model.uri", "must have a host"]),
        ({"model": {"uri": "file:///models/adder\0"}}, ["spec.model.uri", "should match"]),
        ({"runtime": {"env": [{"name": "A", "value": "x" * 150_000}]}}, ["spec.runtime.env[0].value", "Too long"]),
        (
            {"runtime": {"resources": {"limits": {"cpu": "1e9999999"}}}},
            ["spec.runtime.resources.limits.cpu", "should match"],
        ),
        (
            {"route": {"httpRoute": {"parentRefs": [{"name": "g"}], "hostnames": ["\U0001f680.example.com"]}}},
            ["spec.route.httpRoute.hostnames[0]", "should match"],
        ),
    ],
    ids=[
        "min-above-max",
        "no-rollout",
        "batch-above-queue",
        "unknown-field",
        "wrong-enum",
        "bad-uri",
        "capital-scheme",
        "bad-host",
        "control-character",
        "long-variable",
        "huge-quantity",
        "emoji-host",
    ],
)
def test_a_spec_that_cannot_be_right_is_refused_by_field_and_rule(
    namespace: Cluster, spec: dict[str, Any], said: list[str]
) -> None:
    done = namespace.apply(check=False, **spec)

    assert done.returncode == 1
    assert [part for part in said if part not in done.stderr] == [], done.stderr
    assert not namespace.get("infsvc")


@pytest.mark.parametrize(
    ("spec", "reason", "said"),
    [
        ({"model": {"uri": "file:///models/none"}}, "RuntimeCrashed", ["/models/none"]),
        ({"model": {"uri": "file:///models/broken"}}, "RuntimeCrashed", ["have 10 classes, not 1000"]),
        ({"runtime": {"image": "example/none:1"}}, "ImagePullFailed", ["example/none:1", "images.yaml"]),
        (
            {"model": {"uri": "file:///models/adder", "parameters": {"a": "x" * 200_000}}},
            "InvalidSpec",
            ["spec.model.parameters", "SHOAL_MODEL_PARAMETERS"],
        ),
        (
            {"runtime": {"resources": {"limits": {"nvidia.com/gpu": "2"}}}},
            "InsufficientGPU",
            ["0/1 nodes are available", "Insufficient nvidia.com/gpu"],
        ),
    ],
    ids=["no-model", "crash-on-load", "no-image", "large-parameters", "no-gpu"],
)  # fmt: skip
def test_a_spec_that_cannot_work_says_why(
    namespace: Cluster, spec: dict[str, Any], reason: str, said: list[str]
) -> None:
    namespace.apply(**spec)

    assert_condition(namespace, reason, said)


WEIGHTED = {"weight": 1.5, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}


@pytest.mark.parametrize(
    "pod",
    [
        {"securityContext": {"runAsUser": 1.5}},
        {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [WEIGHTED]}}},
        {"topologySpreadConstraints": [{"x" * 40_000: 1}]},
        {"topologySpreadConstraints": [{"maxSkew": "1.5"}]},
    ],
    ids=["fraction", "fractional-weight", "long-sentence", "wrong-type"],
)
def test_fields_that_the_deployment_rejects_are_reported(namespace: Cluster, pod: dict[str, Any]) -> None:
    assert_deployment_refused(namespace, pod)


@pytest.mark.parametrize(
    "pod",
    [
        {"annotations": {f"{'x' * 40_000}/{index}": "" for index in range(3)}},
        {"labels": {"\U0001f680": "x"}},
        {"priorityClassName": "shoal-\U0001f680"},
        {"nodeSelector": {"a b": "x"}},
    ],
    ids=["long-annotations", "emoji-label", "emoji-class", "bad-selector"],
)
def test_invalid_deployment_name_is_reported(namespace: Cluster, pod: dict[str, Any]) -> None:
    if namespace.parts.embedded:
        pytest.skip(
            "only on a real control plane: the embedded one takes any name of a label, a class or an annotation"
        )

    assert_deployment_refused(namespace, pod)


def assert_deployment_refused(cluster: Cluster, pod: dict[str, Any]) -> None:
    """Apply a service with such pods; the API server's words must be in the status at once, in full or cut."""
    cluster.apply(pod=pod)

    eventually(lambda: cluster.condition("adder").get("reason") == "InvalidSpec", within_s=10)
    message = cluster.condition("adder")["message"]
    assert message.startswith("Deployment: ")
    assert len(message) <= 4096
    eventually(lambda: "Warning  InvalidSpec" in cluster.kubectl("describe", "infsvc", "adder").stdout)
    assert not cluster.get("deployment", "adder")


def assert_condition(cluster: Cluster, reason: str, said: list[str]) -> None:
    """Wait for a reason; the condition and ``kubectl describe`` must hold every part of ``said``."""
    eventually(
        lambda: cluster.condition("adder").get("reason") == reason,
        lambda: cluster.kubectl("describe", "infsvc,pods", check=False).stdout,
    )
    ready = cluster.condition("adder")
    described = cluster.kubectl("describe", "infsvc", "adder").stdout
    assert ready["status"] == "False"
    assert [part for part in said if part not in ready["message"]] == [], ready["message"]
    assert [part for part in said if part not in described] == [], described
    eventually(lambda: f"Warning  {reason}" in cluster.kubectl("describe", "infsvc", "adder").stdout)


@contextmanager
def web_server(files: dict[str, bytes]) -> Iterator[str]:
    """Serve files on this machine; anything else is answered with 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = files.get(self.path)
            self.send_response(200 if body is not None else 404)
            self.send_header("content-length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_model_that_the_server_does_not_have_is_named(namespace: Cluster) -> None:
    with web_server({}) as url:
        namespace.apply(model={"uri": f"{url}/adder.tar.gz"})
        assert_condition(
            namespace, "ModelDownloadFailed", ["the model cannot be downloaded", f"{url}/adder.tar.gz", "404"]
        )


def test_a_model_is_downloaded_and_only_the_right_one(namespace: Cluster) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(MODELS["adder"], arcname="adder", filter=lambda info: None if "__pycache__" in info.name else info)
    body = archive.getvalue()
    with web_server({"/adder.tar.gz": body}) as url:
        model = {"uri": f"{url}/adder.tar.gz", "checksum": f"sha256:{'0' * 64}"}
        namespace.apply(model=model)
        assert_condition(namespace, "ModelDownloadFailed", ["sha256:"])

        namespace.apply(model={**model, "checksum": f"sha256:{hashlib.sha256(body).hexdigest()}"})
        namespace.until_ready()
        assert predict(namespace) == EXPECTED
