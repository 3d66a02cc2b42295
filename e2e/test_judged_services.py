"""Judged rollouts of services that sleep, scale, need keys or TLS, serve a graph, or change again meanwhile."""

from pathlib import Path
from typing import Any

import pytest

from e2e.clusters.cluster import Cluster
from e2e.judged import CANARY, CANDIDATE, ENDLESS, NAME, apply, clients, described, judged, rollout_of, until
from e2e.test_access import OLD, apply_secret
from e2e.test_graphs import CHAIN, condition
from e2e.test_graphs import apply as apply_graph
from e2e.test_graphs import until as until_graph
from e2e.test_tls import TRUST, apply_tls_secret
from e2e.waiting import eventually
from tests.certificates import CLIENT, SERVER

BOTH_WAYS = {**CANARY, "steps": [{"shadow": 100, "rows": 200}, {"shadow": 50, "weight": 50, "rows": 200}]}
"""Shadowed batches, then requests too."""
COMPARED = {**CANARY, "steps": [{"shadow": 50, "weight": 50, "rows": ENDLESS}]}
"""A step that does not end."""
START_S = 60.0


def pods(cluster: Cluster, name: str) -> tuple[int, int]:
    """Return the pods that a Deployment should have, and its ready ones."""
    deployment = cluster.get("deployment", name) or {"spec": {"replicas": 0}, "status": {}}
    return deployment["spec"]["replicas"], deployment["status"].get("readyReplicas", 0)


def until_compared(cluster: Cluster) -> None:
    """Wait until the candidate has run rows of the step."""
    eventually(
        lambda: judged(cluster) == "Comparing" and rollout_of(cluster).get("figures", {}).get("rows", 0) > 0,
        lambda: described(cluster),
        within_s=120,
    )


def promote_under_load(cluster: Cluster, fields: dict[str, Any], **calls: Any) -> None:
    """Roll out an equal version, of which clients must notice nothing but the header."""
    before = rollout_of(cluster)["stable"]
    with clients(cluster, **calls) as seen:
        apply(cluster, BOTH_WAYS, fields, version=2)
        eventually(lambda: rollout_of(cluster).get("step") == 2, lambda: described(cluster), within_s=120)
        # Of the shadowed batches alone.
        figures = rollout_of(cluster)["figures"]
        assert figures["errors"] == "0"
        # Both are processes of the same program.
        assert 0.5 < figures["memoryBytes"] / figures["stableMemoryBytes"] < 2
        assert figures["startSeconds"] >= 0
        assert figures["stableStartSeconds"] >= 0
        until(cluster, "NoCandidate")

    after = rollout_of(cluster)["stable"]
    assert seen.failures == []
    assert after != before
    assert seen.revisions[before] > 0
    assert seen.revisions[after] > 0


# Services that sleep and scale.


def test_a_sleeping_service_compares_its_candidate_once_requests_wake_it(namespace: Cluster) -> None:
    scaling = {"minReplicas": 0, "maxReplicas": 2, "scaleToZeroDelaySeconds": 1}
    fields = {"scaling": scaling}
    apply(namespace, {**BOTH_WAYS, "drainDelaySeconds": 2}, fields)
    namespace.until_ready(NAME)
    eventually(lambda: pods(namespace, NAME) == (0, 0), lambda: described(namespace))
    before = rollout_of(namespace)["stable"]

    apply(namespace, {**BOTH_WAYS, "drainDelaySeconds": 2}, fields, version=2)
    until(namespace, "CandidateWaiting")
    assert "the service has no pods" in namespace.condition(NAME, "CandidateJudged")["message"]
    assert pods(namespace, NAME) == pods(namespace, CANDIDATE) == (0, 0)
    with clients(namespace, timeout_s=START_S) as seen:
        until(namespace, "NoCandidate")

    assert seen.failures == []
    assert seen.revisions[before] > 0
    assert rollout_of(namespace)["stable"] != before
    eventually(lambda: pods(namespace, NAME) == (0, 0), lambda: described(namespace))


def test_a_service_that_goes_to_zero_in_a_step_continues_it_with_its_next_requests(namespace: Cluster) -> None:
    fields = {"scaling": {"minReplicas": 0, "maxReplicas": 2, "scaleToZeroDelaySeconds": 3600}}
    slowly = {**COMPARED, "drainDelaySeconds": 2}
    apply(namespace, slowly, fields)
    namespace.until_ready(NAME)
    with clients(namespace, timeout_s=START_S) as seen:
        apply(namespace, slowly, fields, version=2)
        until_compared(namespace)
        candidate = rollout_of(namespace)["candidate"]
        stable = {
            pod["metadata"]["uid"]
            for pod in namespace.get("pods", selector=f"serving.shoal.dev/inferenceservice={NAME}")
        }
        assert stable
        namespace.kubectl("scale", "infsvc", NAME, "--replicas=0")

        def replaced() -> bool:
            found = namespace.get("pods", selector=f"serving.shoal.dev/inferenceservice={NAME}")
            return bool(found) and not stable & {pod["metadata"]["uid"] for pod in found}

        eventually(replaced, lambda: described(namespace), within_s=120)
        before = seen.revisions[candidate]
        eventually(lambda: seen.revisions[candidate] > before + 20, lambda: described(namespace), within_s=120)
        assert judged(namespace) == "Comparing"

    assert seen.failures == []
    assert (rollout_of(namespace)["candidate"], rollout_of(namespace)["step"]) == (candidate, 1)


def test_the_candidate_follows_the_number_of_pods_that_another_scaler_writes(namespace: Cluster) -> None:
    fields = {"scaling": {"mode": "External", "maxReplicas": 3}}
    slowly = {**COMPARED, "drainDelaySeconds": 2}
    apply(namespace, slowly, fields)
    namespace.until_ready(NAME)
    with clients(namespace) as seen:
        apply(namespace, slowly, fields, version=2)
        until_compared(namespace)
        assert (pods(namespace, NAME), pods(namespace, CANDIDATE)) == ((1, 1), (1, 1))

        namespace.kubectl("scale", "infsvc", NAME, "--replicas=3")
        eventually(
            lambda: (pods(namespace, NAME), pods(namespace, CANDIDATE)) == ((3, 3), (2, 2)),
            lambda: described(namespace),
        )
        generation = namespace.get("infsvc", NAME)["metadata"]["generation"]
        namespace.kubectl("scale", "infsvc", NAME, "--replicas=1")
        eventually(
            lambda: (pods(namespace, NAME), pods(namespace, CANDIDATE)) == ((1, 1), (1, 1)),
            lambda: described(namespace),
        )
        before = seen.answered
        eventually(lambda: seen.answered > before + 100)

    assert seen.failures == []
    assert judged(namespace) == "Comparing"
    service = namespace.get("infsvc", NAME)
    # The operator wrote no number of its own.
    assert (service["spec"]["replicas"], service["metadata"]["generation"]) == (1, generation + 1)


# Keys and certificates.


def test_requests_with_keys_reach_the_candidate_in_the_shadow_and_as_a_canary(namespace: Cluster) -> None:
    apply_secret(namespace, alice=OLD)
    fields = {"access": {"apiKeys": {"secretName": "shoal-callers"}}}
    apply(namespace, BOTH_WAYS, fields)
    namespace.until_ready(NAME)

    promote_under_load(namespace, fields, headers={"authorization": f"Bearer {OLD}"})


@pytest.mark.parametrize("mutual", [False, True], ids=["server", "mutual"])
def test_revisions_compare_over_tls(namespace: Cluster, tmp_path: Path, *, mutual: bool) -> None:
    issued = TRUST.issue(f"{NAME}.{namespace.namespace}.svc", usages=(SERVER, CLIENT), loopback=False)
    certificate, key = issued.written(tmp_path)
    apply_tls_secret(namespace, "shoal-drifting-tls", {"tls.crt": certificate, "tls.key": key})
    tls = {"secretName": "shoal-drifting-tls"}
    own = None
    if mutual:
        apply_tls_secret(namespace, "shoal-callers", {"ca.crt": TRUST.written(tmp_path)})
        tls["clientCaSecretName"] = "shoal-callers"
        own = TRUST.issue("a caller", usages=(CLIENT,)).written(tmp_path / "own")
    apply(namespace, BOTH_WAYS, {"tls": tls})
    namespace.until_ready(NAME)

    promote_under_load(namespace, {"tls": tls}, trust=TRUST.trusted(own))


# Graphs.


def test_a_graph_is_served_by_the_right_version_while_a_step_of_it_rolls_out(namespace: Cluster) -> None:
    steps = [{"name": "first", "service": NAME, "inputs": {"x": "request.x"}}, CHAIN["steps"][1]]
    apply(namespace, BOTH_WAYS)
    namespace.apply("adder-two")
    apply_graph(namespace, **{**CHAIN, "steps": steps})
    until_graph(namespace, "Ready", "True", "Ready")
    before = rollout_of(namespace)["stable"]
    with clients(namespace, "chain", adds=2) as seen:
        apply(namespace, BOTH_WAYS, version=2, wrongEvery=10)
        until(namespace, "CandidateFailed")
        apply(namespace, BOTH_WAYS, version=3)
        until(namespace, "NoCandidate")
        after = seen.answered
        eventually(lambda: seen.answered > after + 50)

    assert seen.failures == []
    assert rollout_of(namespace)["stable"] != before
    assert condition(namespace)["status"] == "True"


# Changes of the spec in the middle of a step.


def test_a_newer_candidate_replaces_the_older_one_and_no_client_notices(namespace: Cluster) -> None:
    apply(namespace, COMPARED)
    namespace.until_ready(NAME)
    with clients(namespace) as seen:
        apply(namespace, COMPARED, version=2)
        until_compared(namespace)
        older = rollout_of(namespace)["candidate"]
        apply(namespace, BOTH_WAYS, version=3)
        eventually(
            lambda: "replaced by the newer candidate" in namespace.condition(NAME, "CandidateJudged")["message"],
            lambda: described(namespace),
        )
        newer = rollout_of(namespace)["candidate"]
        until(namespace, "NoCandidate")

    assert seen.failures == []
    assert rollout_of(namespace)["stable"] == newer != older
    assert seen.revisions[older] > 0


def test_other_steps_apply_to_the_candidate_that_runs(namespace: Cluster) -> None:
    apply(namespace, COMPARED)
    namespace.until_ready(NAME)
    with clients(namespace) as seen:
        apply(namespace, COMPARED, version=2)
        until_compared(namespace)
        (candidate,) = namespace.get("pods", selector=f"serving.shoal.dev/candidate={NAME}")
        apply(namespace, {**COMPARED, "steps": [{"weight": 100, "rows": ENDLESS}]}, version=2)
        eventually(lambda: rollout_of(namespace)["weight"] == 100, lambda: described(namespace))
        before = seen.answered
        eventually(lambda: seen.answered > before + 100)
        (same,) = namespace.get("pods", selector=f"serving.shoal.dev/candidate={NAME}")

    assert seen.failures == []
    assert same["metadata"]["uid"] == candidate["metadata"]["uid"]
