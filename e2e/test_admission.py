"""What the API server itself admits: pods under Pod Security, and no URI that holds credentials."""

from typing import Any

import pytest
import yaml

from e2e.clients import EXPECTED, predict
from e2e.clusters.cluster import Cluster

ENFORCE = "pod-security.kubernetes.io/enforce=restricted"


def test_pods_run_without_a_group_of_their_own_where_pod_security_is_restricted(namespace: Cluster) -> None:
    if namespace.parts.embedded:
        pytest.skip("only on a real control plane: the embedded one has no Pod Security")
    namespace.kubectl("label", "namespace", namespace.namespace, ENFORCE)
    namespace.apply()
    namespace.until_ready()

    assert predict(namespace) == EXPECTED
    (pod,) = namespace.get("pods")
    assert "fsGroup" not in pod["spec"]["securityContext"]


def test_the_pods_of_the_chart_are_restricted(namespace: Cluster) -> None:
    if namespace.parts.embedded:
        pytest.skip("only on a real control plane: the embedded one has no Pod Security")
    # The API server warns of pods that run there now and would be refused.
    done = namespace.kubectl("label", "--dry-run=server", "--overwrite", "namespace", "shoal-system", ENFORCE)
    assert "violate" not in done.stderr, done.stderr
    assert namespace.within("shoal-system").get("pods")


# http and https are no part of this: a URI there may hold a signature or a password (docs/models.md).
CREDENTIALS = (
    "s3://KEY:SECRET@bucket/model",
    "s3://KEY@bucket/model",
    "gs://user:SECRET@bucket/model",
    "hf://token:SECRET@team/model",
    "models:/cat:SECRET@host/model",
    "oci://user:SECRET@registry/model:1",
)


def service(uri: str) -> dict[str, Any]:
    return {"kind": "InferenceService", "spec": {"model": {"uri": uri}}}


def batch(field: str, uri: str) -> dict[str, Any]:
    """Return a job one URI of which is given."""
    uris = {"model": "file:///models/adder", "input": "file:///in", "output": "file:///out", field: uri}
    return {"kind": "BatchInference", "spec": {name: {"uri": each} for name, each in uris.items()}}


@pytest.mark.parametrize("uri", CREDENTIALS)
def test_a_uri_that_holds_credentials_is_refused_and_not_stored(namespace: Cluster, uri: str) -> None:
    bodies = [service(uri), *(batch(field, uri) for field in ("model", "input", "output"))]
    for body in bodies:
        whole = {"apiVersion": "serving.shoal.dev/v1alpha1", "metadata": {"name": "adder"}, **body}
        done = namespace.kubectl("apply", "--filename", "-", text=yaml.safe_dump(whole), check=False)
        assert done.returncode == 1, body
        assert "uri" in done.stderr, done.stderr
    assert not namespace.get("infsvc")
    assert not namespace.get("batchinf")


def test_the_rest_of_such_a_uri_is_taken(namespace: Cluster) -> None:
    """So that what is refused above is refused for its credentials."""
    for name, uri in {"one": "s3://bucket/model", "two": "https://host/model", "three": "hf://team/model"}.items():
        whole = {"apiVersion": "serving.shoal.dev/v1alpha1", "metadata": {"name": name}, **service(uri)}
        namespace.kubectl("apply", "--dry-run=server", "--filename", "-", text=yaml.safe_dump(whole))
