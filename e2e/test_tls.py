"""TLS as far as the pod, with a certificate from a Secret; and the NetworkPolicy that says who reaches pods."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.clients import EXPECTED, ROW, TIMEOUT_S, predict
from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually
from tests.certificates import CLIENT, SERVER, Authority

TRUST = Authority()
STRANGER = Authority("a stranger")


def apply_tls_secret(cluster: Cluster, name: str, files: dict[str, Path]) -> None:
    cluster.kubectl("create", "secret", "generic", name, *(f"--from-file={key}={file}" for key, file in files.items()))


def apply_certificate(cluster: Cluster, folder: Path) -> None:
    """Give the service a certificate, as cert-manager would: it names the Service."""
    issued = TRUST.issue(f"adder.{cluster.namespace}.svc", usages=(SERVER, CLIENT), loopback=False)
    certificate, key = issued.written(folder)
    apply_tls_secret(cluster, "shoal-adder-tls", {"tls.crt": certificate, "tls.key": key})


def client_of(cluster: Cluster, own: tuple[Path, Path] | None = None, trust: Authority = TRUST) -> httpx.Client:
    """Return a caller who knows the Service by its name; this machine has no names of the cluster."""
    service = cluster.get("service", "adder")["spec"]
    assert service["ports"][0]["port"] == 443
    return httpx.Client(
        base_url=f"https://{service['clusterIP']}",
        verify=trust.trusted(own),
        timeout=TIMEOUT_S,
    )


def predict_by(client: httpx.Client, cluster: Cluster) -> list[float]:
    known_as = {"sni_hostname": f"adder.{cluster.namespace}.svc"}
    answer = client.post("/v1/models/adder:predict", json={"instances": [ROW]}, extensions=known_as)
    assert answer.status_code == 200, answer.text
    prediction: list[float] = answer.json()["predictions"][0]
    return prediction


@contextmanager
def under_load(cluster: Cluster) -> Iterator[list[str]]:
    """Call, each time anew, until the block ends; yield what failed."""
    stop, failed, began = threading.Event(), list[str](), threading.Event()

    def call() -> None:
        while not stop.wait(0.01):
            try:
                with client_of(cluster) as client:
                    assert predict_by(client, cluster) == EXPECTED
            except (AssertionError, httpx.HTTPError) as error:
                failed.append(repr(error))
            began.set()

    thread = threading.Thread(target=call)
    thread.start()
    try:
        assert began.wait(60)
        yield failed
    finally:
        stop.set()
        thread.join()


def test_clients_use_tls_to_the_pods_and_a_rollout_loses_no_request(namespace: Cluster, tmp_path: Path) -> None:
    apply_certificate(namespace, tmp_path)
    tls = {"secretName": "shoal-adder-tls"}
    namespace.apply(tls=tls, rollout={"drainDelaySeconds": 2})
    namespace.until_ready()

    with client_of(namespace) as client:
        assert predict_by(client, namespace) == EXPECTED
    assert namespace.get("infsvc", "adder")["status"]["url"].startswith("https://")
    with client_of(namespace, trust=STRANGER) as client, pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY"):
        predict_by(client, namespace)
    plainly = httpx.get(f"http://{namespace.get('service', 'adder')['spec']['clusterIP']}:443/", timeout=TIMEOUT_S)
    assert (plainly.status_code, "https://" in plainly.text) == (400, True)

    with under_load(namespace) as failed:
        namespace.apply(tls=tls, rollout={"drainDelaySeconds": 2}, batching={"maxBatchSize": 4})
        namespace.until_ready()
    assert not failed


def test_a_service_turns_to_tls_and_back(namespace: Cluster, tmp_path: Path) -> None:
    apply_certificate(namespace, tmp_path)
    namespace.apply()
    namespace.until_ready()
    assert predict(namespace) == EXPECTED

    namespace.apply(tls={"secretName": "shoal-adder-tls"})
    namespace.until_ready()
    with client_of(namespace) as client:
        assert predict_by(client, namespace) == EXPECTED

    namespace.apply()
    namespace.until_ready()
    assert predict(namespace) == EXPECTED


def test_client_authority_requires_client_certificates(namespace: Cluster, tmp_path: Path) -> None:
    apply_certificate(namespace, tmp_path)
    apply_tls_secret(namespace, "shoal-callers", {"ca.crt": TRUST.written(tmp_path)})
    namespace.apply(tls={"secretName": "shoal-adder-tls", "clientCaSecretName": "shoal-callers"})
    namespace.until_ready()

    own = TRUST.issue("a caller", usages=(CLIENT,)).written(tmp_path / "own")
    with client_of(namespace, own) as client:
        assert predict_by(client, namespace) == EXPECTED
    with client_of(namespace) as client, pytest.raises(httpx.TransportError):
        predict_by(client, namespace)


def test_what_contradicts_tls_is_refused(namespace: Cluster) -> None:
    scaling = {"minReplicas": 0, "maxReplicas": 2}
    done = namespace.apply(tls={"secretName": "a"}, scaling=scaling, check=False)
    assert "minReplicas must be at least 1 with tls" in done.stderr
    done = namespace.apply(networkPolicy={"mode": "None", "from": [{"podSelector": {}}]}, check=False)
    assert "from requires mode Restricted" in done.stderr


def policy_of(cluster: Cluster) -> Any:
    found = cluster.get("networkpolicy", "adder")
    return found and found["spec"]


def test_network_policy_follows_the_spec_and_is_restored(namespace: Cluster) -> None:
    shop = [{"podSelector": {"matchLabels": {"app": "shop"}}}, {"ipBlock": {"cidr": "192.0.2.0/24"}}]
    namespace.apply(networkPolicy={"from": shop})
    namespace.until_ready()
    before = policy_of(namespace)
    assert before["ingress"][0]["from"][:2] == shop

    namespace.kubectl("delete", "networkpolicy", "adder")
    eventually(lambda: policy_of(namespace) == before)
    anyone: dict[str, Any] = {"spec": {"ingress": [{}]}}
    namespace.kubectl("patch", "networkpolicy", "adder", "--type=merge", "--patch", json.dumps(anyone))
    eventually(lambda: policy_of(namespace) == before)

    namespace.apply(networkPolicy={"mode": "None"})
    eventually(lambda: policy_of(namespace) is None)
    namespace.apply()
    eventually(lambda: "from" not in (policy_of(namespace) or before)["ingress"][0])


def test_a_policy_of_a_services_name_that_is_not_ours_is_left_alone(namespace: Cluster) -> None:
    spec = {"podSelector": {}, "policyTypes": ["Ingress"]}
    body = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "adder"}, "spec": spec}
    namespace.kubectl("create", "--filename", "-", text=json.dumps(body))
    namespace.apply()
    eventually(lambda: "NetworkPolicy" in namespace.condition("adder").get("message", ""))
    namespace.apply(networkPolicy={"mode": "None"})
    namespace.until_ready()
    assert policy_of(namespace) == spec
