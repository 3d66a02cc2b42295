"""API keys from a Secret: authentication, a rotation under load, and the status while the Secret is missing."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from e2e.clients import EXPECTED, ROW
from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually

OLD, NEW = "alice-key-0123456789-old", "alice-key-0123456789-new"
ROTATED_S = 120.0
"""A kubelet takes up a changed Secret within its sync period and what its cache lags behind."""


def describe(cluster: Cluster) -> str:
    return cluster.kubectl("describe", "infsvc,pods", check=False).stdout


def apply_secret(cluster: Cluster, **keys: str) -> None:
    literals = [f"--from-literal={name}={key}" for name, key in keys.items()]
    made = cluster.kubectl(
        "create", "secret", "generic", "shoal-callers", "--dry-run=client", "--output=yaml", *literals
    )
    cluster.kubectl("apply", "--filename=-", text=made.stdout)


def predict_with_key(cluster: Cluster, client: httpx.Client, key: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return client.post(
        f"{cluster.address()}/v1/models/adder:predict", json={"instances": [ROW]}, headers=headers, timeout=20
    )


def test_keys_come_from_a_secret_and_change_without_a_restart_or_a_lost_request(namespace: Cluster) -> None:
    namespace.apply(access={"apiKeys": {"secretName": "shoal-callers"}, "limits": {"rowsInFlight": {"*": 1000}}})
    eventually(
        lambda: (
            "Secret shoal-callers of access.apiKeys" in namespace.condition("adder", "Available").get("message", "")
        ),
        lambda: describe(namespace),
    )
    apply_secret(namespace, alice=OLD)
    namespace.until_ready()
    pods = [pod["metadata"]["uid"] for pod in namespace.get("pods")]

    with httpx.Client() as client:
        assert (
            predict_with_key(namespace, client, "").status_code
            == predict_with_key(namespace, client, NEW).status_code
            == 401
        )
        answer = predict_with_key(namespace, client, OLD)
        assert (answer.status_code, answer.json()) == (200, {"predictions": [EXPECTED]})
        assert client.get(f"{namespace.address()}/v2/health/ready", timeout=20).status_code == 200
        assert client.get(f"{namespace.address()}/v2/models/adder", timeout=20).status_code == 401

        key, stop, seen = [OLD], threading.Event(), list[int]()

        def call() -> None:
            with httpx.Client() as own:
                while not stop.is_set():
                    seen.append(predict_with_key(namespace, own, key[0]).status_code)
                    time.sleep(0.01)

        with ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(call) for _ in range(3)]
            try:
                apply_secret(namespace, alice=f"{OLD}\n{NEW}")
                eventually(lambda: predict_with_key(namespace, client, NEW).status_code == 200, within_s=ROTATED_S)
                key[0] = NEW
                apply_secret(namespace, alice=NEW)
                eventually(lambda: predict_with_key(namespace, client, OLD).status_code == 401, within_s=ROTATED_S)
            finally:
                stop.set()
            for each in calls:
                each.result()

    assert set(seen) == {200}
    assert [pod["metadata"]["uid"] for pod in namespace.get("pods")] == pods


def test_a_secret_without_a_key_is_named_in_the_status(namespace: Cluster) -> None:
    apply_secret(namespace, alice="tooshort")
    namespace.apply(access={"apiKeys": {"secretName": "shoal-callers"}})
    eventually(
        lambda: (
            "Secret shoal-callers of access.apiKeys" in namespace.condition("adder", "Available").get("message", "")
        ),
        lambda: describe(namespace),
    )
    apply_secret(namespace, alice=OLD)
    namespace.until_ready()


def test_contradictory_access_settings_are_rejected(namespace: Cluster) -> None:
    for access, words in (
        ({}, "apiKeys or jwt"),
        (
            {
                "jwt": {"issuer": "https://a", "audience": "b", "jwksUrl": "https://a/keys"},
                "header": {"name": "x-consumer", "keys": ["edge"]},
            },
            "header requires apiKeys",
        ),
        (
            {"apiKeys": {"secretName": "shoal-callers"}, "header": {"name": "host", "keys": ["edge"]}},
            "must not be a header",
        ),
        (
            {"apiKeys": {"secretName": "shoal-callers"}, "header": {"name": "x-consumer", "keys": []}},
            "at least one key",
        ),
        ({"jwt": {"issuer": "a", "audience": "b", "jwksUrl": "http://issuer.example.com/keys"}}, "jwksUrl"),
    ):
        refused = namespace.apply(check=False, access=access)
        assert refused.returncode
        assert words in refused.stderr
