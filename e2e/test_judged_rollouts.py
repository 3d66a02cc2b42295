"""Rollouts by candidate: a worse version never reaches clients, and a good one replaces the stable one unnoticed."""

from typing import Any

import pytest

from e2e.clusters.cluster import OPERATOR, Cluster
from e2e.judged import CANARY, CANDIDATE, ENDLESS, NAME, SHADOW, apply, clients, judged, rollout_of, until
from e2e.waiting import eventually


@pytest.fixture
def serving(namespace: Cluster) -> Cluster:
    """Serve the first version, which is right."""
    apply(namespace, SHADOW)
    namespace.until_ready(NAME)
    return namespace


def test_a_worse_version_in_the_shadow_is_removed_and_no_client_notices(serving: Cluster) -> None:
    steps = [{"shadow": 100, "rows": 5000}]
    with clients(serving) as seen:
        apply(serving, {**SHADOW, "steps": steps}, version=2, wrongEvery=20)
        until(serving, "CandidateFailed")
        eventually(lambda: not serving.get("deployment", CANDIDATE))
        before = seen.answered
        eventually(lambda: seen.answered > before + 20)

    assert seen.failures == []
    assert "y" in serving.condition(NAME, "CandidateJudged")["message"]
    assert serving.condition(NAME)["status"] == "True"
    state = rollout_of(serving)
    assert (state["phase"], state["stable"] != state["candidate"]) == ("Failed", True)


def test_an_equal_version_goes_through_all_steps_and_becomes_stable(serving: Cluster) -> None:
    before = rollout_of(serving)["stable"]
    steps = [{"shadow": 50, "rows": 200}, {"weight": 25, "rows": 200}, {"weight": 50, "rows": 200}, {"weight": 100}]
    steps[-1]["rows"] = 100
    with clients(serving) as seen:
        apply(serving, {**CANARY, "steps": steps}, version=2)
        until(serving, "NoCandidate")
        eventually(lambda: not serving.get("deployment", CANDIDATE))

    assert seen.failures == []
    after = rollout_of(serving)["stable"]
    assert after != before
    assert seen.revisions[before] > 0
    assert seen.revisions[after] > 0


def test_a_candidate_that_fails_rows_is_rolled_back_from_a_canary_step(serving: Cluster) -> None:
    with clients(serving) as seen:
        apply(serving, {**CANARY, "steps": [{"weight": 25, "rows": ENDLESS}]}, version=2, failEvery=10)
        until(serving, "CandidateFailed")
        # Clients of the candidate got its errors; no other client did, and none did after the verdict.
        eventually(lambda: not serving.get("deployment", CANDIDATE))
        failures, before = len(seen.failures), seen.answered
        eventually(lambda: seen.answered > before + 100)
        assert len(seen.failures) == failures

    assert all("this version fails" in each for each in seen.failures)


def test_another_signature_is_named_and_refused(serving: Cluster) -> None:
    apply(serving, {**CANARY, "steps": [{"shadow": 100, "rows": ENDLESS}]}, version=2, columns=8)

    until(serving, "SignatureChanged")
    assert "x" in serving.condition(NAME, "CandidateJudged")["message"]


def test_the_old_spec_removes_the_candidate(serving: Cluster) -> None:
    apply(serving, {**CANARY, "steps": [{"shadow": 100, "rows": ENDLESS}]}, version=2)
    until(serving, "Comparing", "CandidateWaiting")

    apply(serving, CANARY)

    until(serving, "NoCandidate")
    eventually(lambda: not serving.get("deployment", CANDIDATE))


def test_a_killed_operator_continues_the_step(serving: Cluster) -> None:
    with clients(serving) as seen:
        apply(serving, {**CANARY, "steps": [{"weight": 50, "rows": 2000}]}, version=2)
        until(serving, "Comparing")
        operators = serving.within("shoal-system").get("pods", selector=OPERATOR)
        assert operators
        for pod in operators:
            serving.within("shoal-system").kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
        until(serving, "NoCandidate")

    assert seen.failures == []


def test_a_candidate_waits_for_the_only_gpu_and_says_so_while_the_stable_version_serves(namespace: Cluster) -> None:
    resources = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    model = {"uri": "file:///models/drifting"}
    fields: dict[str, Any] = {"runtime": resources, "rollout": CANARY, "scaling": {"minReplicas": 1, "maxReplicas": 2}}
    namespace.apply(NAME, model=model, **fields)
    namespace.until_ready(NAME)
    (stable,) = namespace.get("pods")

    namespace.apply(NAME, model={**model, "parameters": {"version": 2}}, **fields)

    eventually(lambda: "nvidia.com/gpu" in namespace.condition(NAME, "CandidateJudged").get("message", ""))
    assert (judged(namespace), rollout_of(namespace)["phase"]) == ("CandidateStarting", "Waiting")
    (candidate,) = namespace.get("pods", selector=f"serving.shoal.dev/candidate={NAME}")
    assert candidate["status"]["phase"] == "Pending"
    with clients(namespace) as seen:
        eventually(lambda: seen.answered > 20)
    assert seen.failures == []
    (same,) = namespace.get("pods", selector=f"serving.shoal.dev/inferenceservice={NAME}")
    assert same["metadata"]["uid"] == stable["metadata"]["uid"]
    assert namespace.condition(NAME)["status"] == "True"


def test_commands_pause_resume_promote(serving: Cluster) -> None:
    before = rollout_of(serving)["stable"]
    apply(serving, {**CANARY, "steps": [{"shadow": 100, "rows": ENDLESS}]}, version=2)
    until(serving, "Comparing", "CandidateWaiting")
    candidate = rollout_of(serving)["candidate"]

    serving.kubectl("annotate", "infsvc", NAME, f"serving.shoal.dev/rollout=pause {candidate}")
    until(serving, "CandidatePaused")
    serving.kubectl("annotate", "infsvc", NAME, "serving.shoal.dev/rollout-")
    until(serving, "Comparing", "CandidateWaiting")
    serving.kubectl("annotate", "infsvc", NAME, f"serving.shoal.dev/rollout=promote {candidate}")

    until(serving, "NoCandidate")
    assert rollout_of(serving)["stable"] == candidate != before


def test_a_sleeping_service_waits_with_its_candidate(serving: Cluster) -> None:
    model = {"uri": "file:///models/drifting", "parameters": {"version": 2}}
    serving.apply(NAME, model=model, rollout=CANARY, replicas=0)

    until(serving, "CandidateWaiting")
    assert rollout_of(serving)["phase"] == "Waiting"
