from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_local.controllers.changes import Create, Delete
from shoal_local.controllers.job_counts import FAILURES, format_indexes, index_of, parse_indexes
from shoal_local.objects import Object, condition, has_ended, is_deleting
from tests.local.controllers.jobs import JobSimulation, held, make_job

INDEXED: Object = {"completionMode": "Indexed", "completions": 4, "parallelism": 2}


def simulation(**spec: Any) -> JobSimulation:
    made = JobSimulation(make_job(**spec))
    made.settle()
    return made


def failed(*indexes: int) -> Callable[[Object], str]:
    return lambda pod: "Failed" if index_of(pod) in indexes else "Succeeded"


def indexes(simulation: JobSimulation) -> list[int]:
    return sorted(map(index_of, simulation.active))


@pytest.mark.parametrize(
    ("indexes", "text"),
    [
        ((), ""),
        ((3,), "3"),
        ((0, 1), "0,1"),
        ((0, 1, 2), "0-2"),
        ((5, 0, 3, 1, 2), "0-3,5"),
        ((1, 3, 4, 5, 7), "1,3-5,7"),
    ],
)
def test_indexes_are_written_as_spans(indexes: tuple[int, ...], text: str) -> None:
    assert format_indexes(indexes) == text
    assert parse_indexes(text) == set(indexes)


@given(st.frozensets(st.integers(0, 40)))
def test_indexes_that_were_written_are_read_again(indexes: frozenset[int]) -> None:
    assert parse_indexes(format_indexes(indexes)) == indexes


def test_an_indexed_job_runs_each_index_once_a_few_at_a_time() -> None:
    job = simulation(**INDEXED)
    seen = []
    for _ in range(2):
        seen.append(indexes(job))
        job.end_all()
    assert seen == [[0, 1], [2, 3]]
    assert (job.reason, job.status["completedIndexes"], job.status["succeeded"]) == ("CompletionsReached", "0-3", 4)
    assert job.status["completionTime"] == job.status["startTime"] == "2026-01-01T00:00:00Z"
    assert [one["type"] for one in job.status["conditions"]] == ["SuccessCriteriaMet", "Complete"]
    assert job.events == ["Completed"]


def test_a_pod_of_an_index_knows_it() -> None:
    job = simulation(**INDEXED)
    pod = job.active[1]
    meta, spec = pod["metadata"], pod["spec"]
    assert meta["generateName"] == "sums-1-"
    assert meta["labels"] == {"app": "sums", "batch.kubernetes.io/job-completion-index": "1"}
    assert meta["ownerReferences"][0]["uid"] == "j"
    assert spec["hostname"] == "sums-1"
    field = "metadata.labels['batch.kubernetes.io/job-completion-index']"
    assert spec["containers"][0]["env"] == [
        {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": field}}}
    ]
    assert "env" not in job.job["spec"]["template"]["spec"]["containers"][0]


def test_an_index_that_failed_is_tried_again_later_and_later() -> None:
    job = simulation(**INDEXED)
    waits = []
    for _ in range(3):
        job.end_all(failed(0, 1))
        waits.append(job.plan().requeue_s)
        job.later(waits[-1] or 0)
        assert indexes(job) == [0, 1]
    # Two fail each time.
    assert waits == [20, 80, 320]
    assert job.status["failed"] == 6


def test_a_success_ends_the_waiting() -> None:
    job = simulation(**INDEXED)
    job.end(job.active[0], "Failed")
    job.settle()
    assert indexes(job) == [1]
    job.now += timedelta(seconds=1)
    job.end_all()
    assert indexes(job) == [0, 2]


@pytest.mark.parametrize(
    ("spec", "fails", "reason", "counts"),
    [
        ({"backoffLimit": 0, "completions": 1}, 1, "BackoffLimitExceeded", (0, 1)),
        ({"backoffLimit": 1, "completions": 1}, 2, "BackoffLimitExceeded", (0, 2)),
        ({"backoffLimit": 1, "completions": 1}, 1, "CompletionsReached", (1, 1)),
        ({"completions": 3, "parallelism": 2}, 0, "CompletionsReached", (3, 0)),
        ({"completions": 0}, 0, "CompletionsReached", (0, 0)),
        # A work queue: complete once a pod has succeeded and no pod is left.
        ({"parallelism": 3}, 0, "CompletionsReached", (3, 0)),
        ({**INDEXED, "backoffLimit": 2}, 2, "BackoffLimitExceeded", (0, 4)),
    ],
)
def test_a_job_ends_when_enough_succeeded_or_too_many_failed(
    spec: Object, fails: int, reason: str, counts: tuple[int, int]
) -> None:
    job = simulation(**spec)
    for _ in range(fails):
        job.end_all(lambda pod: "Failed")
        job.later(700)
    for _ in range(4):
        job.end_all()
    assert job.reason == reason
    assert (job.status.get("succeeded", 0), job.status.get("failed", 0)) == counts
    assert job.status["uncountedTerminatedPods"] == {}
    assert not held(list(job.pods.values()))


def test_each_index_has_retries_of_its_own() -> None:
    limits = {"backoffLimit": 2**31 - 1, "backoffLimitPerIndex": 1}
    job = simulation(**INDEXED, **limits)
    job.end_all(failed(1))
    assert indexes(job) == [2], "an index that waits holds its place"
    job.later(10)
    assert indexes(job) == [1, 2]
    (again,) = [pod for pod in job.active if index_of(pod) == 1]
    assert again["metadata"]["annotations"][FAILURES] == "1"
    job.end_all(failed(1))
    assert job.status["failedIndexes"] == "1"
    job.end_all()
    assert (job.reason, job.status["completedIndexes"]) == ("FailedIndexes", "0,2,3")
    assert (job.status["succeeded"], job.status["failed"]) == (3, 2)
    assert job.events[-1] == "FailedIndexes"


def test_a_failure_that_vanishes_before_its_retry_is_known_to_it() -> None:
    job = simulation(**INDEXED, backoffLimit=9, backoffLimitPerIndex=1)
    job.end(job.active[0], "Failed")
    job.settle()
    (lost,) = [pod for pod in job.pods.values() if has_ended(pod)]
    job.delete(lost)
    job.later(20)
    assert {pod["metadata"]["annotations"][FAILURES] for pod in job.active if index_of(pod) == 0} == {"1"}
    assert job.status["failed"] == 1


def test_an_exit_code_that_the_policy_names_ends_the_job_and_no_other_does() -> None:
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [2]}},
    ]
    made = simulation(**INDEXED, backoffLimitPerIndex=3, podFailurePolicy={"rules": rules})
    for code, ends in ((1, False), (2, True)):
        pod = next(pod for pod in made.active if index_of(pod) == 0)
        terminated = {"exitCode": code, "finishedAt": "2026-01-01T00:00:00Z"}
        pod["status"] = {
            "phase": "Failed",
            "containerStatuses": [{"name": "main", "state": {"terminated": terminated}}],
        }
        made.settle()
        made.now += timedelta(seconds=60)
        made.settle()
        found = condition(made.job, "FailureTarget")
        assert (found is not None) is ends
    assert found
    said = f"for pod default/{pod['metadata']['name']} failed with exit code 2 matching FailJob rule at index 1"
    assert (found["reason"], found["message"]) == ("PodFailurePolicy", f"Container main {said}")


def test_too_many_failed_indexes_end_the_others() -> None:
    job = simulation(**INDEXED, backoffLimitPerIndex=0, maxFailedIndexes=0)
    job.end(job.active[1], "Failed")
    job.settle()
    assert (job.status["failedIndexes"], job.reason) == ("1", ""), "the other one has not ended"
    job.end_all(lambda pod: "Failed")
    assert (job.status["failedIndexes"], job.reason) == ("1", "MaxFailedIndexesExceeded")
    assert job.status["failed"] == 2


def test_restarts_in_a_pod_count_as_retries() -> None:
    template = {"spec": {"restartPolicy": "OnFailure", "containers": [{"name": "a"}]}}
    job = simulation(completions=1, backoffLimit=2, template=template)
    (pod,) = job.active
    for count, active in ((1, 1), (2, 0)):
        running = {"phase": "Running", "containerStatuses": [{"restartCount": count}]}
        job.pods[pod["metadata"]["uid"]] = {**pod, "status": running}
        job.settle()
        assert len(job.active) == active
    job.end_all(lambda pod: "Failed")
    assert job.reason == "BackoffLimitExceeded"


def test_a_job_that_takes_too_long_fails_and_its_pods_go_first() -> None:
    job = simulation(**INDEXED, activeDeadlineSeconds=60)
    assert job.plan().requeue_s == 60
    job.later(60)
    assert (job.active, job.reason, job.status["terminating"]) == ([], "", 2)
    job.end_all(lambda pod: "Failed")
    assert (job.reason, job.status["failed"]) == ("DeadlineExceeded", 2)


def test_a_suspended_job_has_no_pods_and_its_time_stands_still() -> None:
    job = simulation(**INDEXED, activeDeadlineSeconds=60)
    job.job["spec"]["suspend"] = True
    job.settle()
    job.end_all(lambda pod: "Failed")
    assert (job.pods, "startTime" in job.status, job.status.get("failed", 0)) == ({}, False, 0)
    assert job.status["conditions"][0]["reason"] == "JobSuspended"
    job.later(100)
    job.job["spec"]["suspend"] = False
    job.settle()
    assert indexes(job) == [0, 1]
    assert job.status["startTime"] == "2026-01-01T00:01:40Z"
    assert [(one["type"], one["status"]) for one in job.status["conditions"]] == [("Suspended", "False")]
    assert [word for word in job.events if word != "SuccessfulDelete"] == ["Suspended", "Resumed"]


def test_less_parallelism_stops_the_pods_with_least_to_lose() -> None:
    job = simulation(**INDEXED)
    job.pods[job.active[1]["metadata"]["uid"]]["spec"]["nodeName"] = "node"
    job.job["spec"]["parallelism"] = 1
    job.settle()
    assert indexes(job) == [1]
    assert job.status.get("failed", 0) == 0


@pytest.mark.parametrize(("policy", "created"), [("TerminatingOrFailed", 2), ("Failed", 1)])
def test_a_pod_that_is_going_is_replaced_at_once_or_when_it_has_ended(policy: str, created: int) -> None:
    job = simulation(**INDEXED, podReplacementPolicy=policy)
    job.delete(job.active[0])
    job.settle()
    assert len(job.active) == created
    job.end_all(lambda pod: "Failed" if is_deleting(pod) else "Succeeded")
    assert job.status["failed"] == 1


def test_a_pod_that_was_given_up_is_no_success_after_all() -> None:
    job = simulation(completions=1)
    job.delete(job.active[0])
    # The status counts it, and the process is killed before it releases the pod.
    job.step(1)
    (pod,) = job.pods.values()
    job.end(pod, "Succeeded")
    job.settle()
    assert (job.status.get("succeeded", 0), job.status["failed"], len(job.active)) == (0, 1, 1)


def test_a_job_that_is_over_goes_after_its_time() -> None:
    job = simulation(completions=1, ttlSecondsAfterFinished=30)
    job.end_all()
    assert (job.plan().actions, job.plan().requeue_s) == ([], 30)
    job.now += timedelta(seconds=30)
    assert job.plan().actions == [Delete(job.job)]


def test_a_job_that_is_going_starts_nothing_and_holds_no_pod() -> None:
    job = simulation(**INDEXED, backoffLimitPerIndex=3)
    job.end(job.active[0], "Failed")
    job.settle()
    assert len(held(list(job.pods.values()))) == 2
    job.job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not [action for action in job.plan().actions if isinstance(action, Create)]
    job.settle()
    assert held(list(job.pods.values())) == []


def test_of_two_pods_of_an_index_one_goes_and_so_does_one_that_was_let_go() -> None:
    job = simulation(**INDEXED)
    one, two = job.active
    for uid, finalizers in (("twin", one["metadata"]["finalizers"]), ("free", [])):
        meta = {**one["metadata"], "uid": uid, "name": uid, "finalizers": finalizers}
        job.pods[uid] = {**one, "metadata": meta}
    job.settle()
    assert indexes(job) == [0, 1]
    assert len(held(job.active)) == job.status["active"] == 2
    assert two in job.active


CHANGES = st.sampled_from(["succeed", "fail", "fail", "delete", "vanish", "suspend", "resume", "wait", ""])
EVENTS = st.lists(st.tuples(CHANGES, st.integers(0, 5), st.sampled_from([0, 1, 1, 2, 3, 100])), max_size=60)


@settings(max_examples=300, deadline=None)
@given(
    st.fixed_dictionaries({"completions": st.integers(1, 5), "parallelism": st.integers(1, 3)}),
    st.sampled_from(["NonIndexed", "Indexed", "Limited"]),
    st.sampled_from(["Failed", "TerminatingOrFailed"]),
    EVENTS,
)
def test_whatever_becomes_of_pods_each_counts_once(
    sizes: Object, mode: str, policy: str, events: list[tuple[str, int, int]]
) -> None:
    limits = {"backoffLimitPerIndex": 100} if mode == "Limited" else {}
    indexed = "NonIndexed" if mode == "NonIndexed" else "Indexed"
    job = JobSimulation(
        make_job(**sizes, **limits, completionMode=indexed, backoffLimit=1000, podReplacementPolicy=policy)
    )
    for what, number, most in events:
        happen(job, what, number)
        # The process may be killed before it has executed the whole plan.
        job.step(most)
        check(job, sizes, whole=most == 100)
    job.job["spec"]["suspend"] = False
    job.later(700)
    for _ in range(20):
        for pod in job.unended:
            job.end(pod, "Succeeded")
        job.later(700)
        check(job, sizes, whole=True)
    assert job.reason == "CompletionsReached"
    assert job.status["succeeded"] == sizes["completions"] == job.successes
    assert job.status.get("failed", 0) == len(job.given_up)
    assert job.lost <= job.given_up


def happen(job: JobSimulation, what: str, number: int) -> None:
    """Apply one random event."""
    pod = job.unended[number % len(job.unended)] if job.unended else None
    if what in ("succeed", "fail") and pod:
        job.end(pod, {"succeed": "Succeeded", "fail": "Failed"}[what])
    elif what == "delete" and pod and not is_deleting(pod):
        job.delete(pod)
    elif what == "vanish":
        for ended in [pod for pod in job.pods.values() if has_ended(pod)][number:]:
            job.delete(ended)
    elif what in ("suspend", "resume"):
        job.job["spec"]["suspend"] = what == "suspend"
    job.now += timedelta(seconds=700 if what == "wait" else 1)


def check(job: JobSimulation, sizes: Object, *, whole: bool) -> None:
    """Check the invariants, and those that hold only after a complete pass."""
    running = held(job.active)
    assert len(running) <= sizes["parallelism"]
    assert job.status.get("succeeded", 0) <= job.successes <= sizes["completions"]
    assert job.status.get("failed", 0) <= len(job.given_up)
    if job.job["spec"]["completionMode"] == "Indexed":
        done = parse_indexes(job.status.get("completedIndexes", ""))
        indexes = [index_of(pod) for pod in running]
        assert len(set(indexes)) == len(indexes)
        # A deleted pod may succeed beside its replacement.
        assert not whole or not done & set(indexes)
        assert len(done) == job.status.get("succeeded", 0)
