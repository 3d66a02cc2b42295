"""Rollouts by candidate: a worse version never reaches clients, and a good one replaces the stable one unnoticed."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from e2e.clusters.cluster import OPERATOR, Cluster
from e2e.waiting import eventually

NAME = "drifting"
CANDIDATE = f"{NAME}-candidate"
SHADOW: dict[str, Any] = {"strategy": "Shadow", "drainDelaySeconds": 0}
CANARY: dict[str, Any] = {**SHADOW, "strategy": "Canary"}
ENDLESS = 100_000_000
"""Rows of a step that no test finishes."""


@dataclass
class Responses:
    """What clients got: rows by revision, and what was wrong."""

    revisions: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def answered(self) -> int:
        return sum(self.revisions.values())


@contextmanager
def clients(cluster: Cluster, count: int = 4, headers: dict[str, str] | None = None) -> Iterator[Responses]:
    """Send rows that all differ, over kept connections, until the block ends."""
    url, seen, stop = f"{cluster.address(NAME)}/v1/models/{NAME}:predict", Responses(), threading.Event()

    def call(number: int) -> None:
        with httpx.Client(timeout=20, headers=headers) as client:
            while not stop.wait(0.005):
                number += count
                row = [float(number), *map(float, range(15))]
                try:
                    response = client.post(url, json={"instances": [row]})
                except httpx.HTTPError as error:
                    seen.failures.append(repr(error))
                    continue
                if response.status_code != 200 or response.json() != {"predictions": [[x + 1 for x in row]]}:
                    seen.failures.append(f"{response.status_code} {response.text:.200}")
                else:
                    seen.revisions[response.headers.get("x-shoal-revision", "")] += 1

    with ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(call, number) for number in range(count)]
        try:
            yield seen
        finally:
            stop.set()
    for each in calls:
        each.result()


def apply(cluster: Cluster, rollout: dict[str, Any], **parameters: Any) -> None:
    model = {"uri": "file:///models/drifting", "parameters": {"version": 1, **parameters}}
    cluster.apply(NAME, model=model, rollout=rollout, replicas=1)


def judged(cluster: Cluster) -> str:
    """Return the reason of the condition, if it is about the newest spec."""
    generation = cluster.get("infsvc", NAME)["metadata"]["generation"]
    condition = cluster.condition(NAME, "CandidateJudged")
    return str(condition.get("reason", "")) if condition.get("observedGeneration") == generation else ""


def rollout_of(cluster: Cluster) -> dict[str, Any]:
    state: dict[str, Any] = cluster.get("infsvc", NAME)["status"].get("rollout", {})
    return state


def described(cluster: Cluster) -> str:
    return cluster.kubectl("describe", "infsvc,deployments,pods", check=False).stdout


def until(cluster: Cluster, *reasons: str) -> None:
    """Wait until the newest spec has one of these reasons."""
    eventually(lambda: judged(cluster) in reasons, lambda: described(cluster), within_s=120)


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


def test_a_candidate_without_a_gpu_says_so_while_the_stable_version_serves(namespace: Cluster) -> None:
    resources = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    model = {"uri": "file:///models/drifting"}
    namespace.apply(NAME, model=model, runtime=resources, rollout=CANARY)
    namespace.until_ready(NAME)

    namespace.apply(NAME, model={**model, "parameters": {"version": 2}}, runtime=resources, rollout=CANARY)

    eventually(lambda: "nvidia.com/gpu" in namespace.condition(NAME, "CandidateJudged").get("message", ""))
    with clients(namespace) as seen:
        eventually(lambda: seen.answered > 20)
    assert seen.failures == []


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
