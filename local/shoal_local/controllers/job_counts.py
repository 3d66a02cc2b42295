"""Counts of a Job's pods: each pod counts exactly once, even if deleted.

A finalizer holds an ended pod. The Job's status first lists the pod's uid in ``uncountedTerminatedPods``; once the
finalizer is removed, the status counts the pod. Source: kubernetes/kubernetes pkg/controller/job/job_controller.go
(trackJobStatusAndRemoveFinalizers).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from shoal_local.objects import Object, annotated, condition, has_ended, is_deleting

INDEX = "batch.kubernetes.io/job-completion-index"


def parse_indexes(text: str) -> frozenset[int]:
    """Return the indexes in a text such as ``0-3,5``; none in an empty text."""
    spans = [part.partition("-") for part in text.split(",") if part]
    return frozenset(index for first, _, last in spans for index in range(int(first), int(last or first) + 1))


def format_indexes(indexes: Iterable[int]) -> str:
    """Return indexes as text: ``0-3,5``; two consecutive ones are ``4,5``."""
    # In a run of consecutive numbers, number minus position is constant.
    runs = [[index for _, index in run] for _, run in groupby(enumerate(sorted(indexes)), lambda at: at[1] - at[0])]
    return ",".join(",".join(map(str, run)) if len(run) < 3 else f"{run[0]}-{run[-1]}" for run in runs)


def index_of(pod: Object) -> int:
    """Return the completion index of a pod, or -1 if it has no valid one."""
    return max(-1, annotated(pod, INDEX, -1))


TRACKING = "batch.kubernetes.io/job-tracking"
FAILURES = "batch.kubernetes.io/job-index-failure-count"


@dataclass(frozen=True, slots=True)
class Counts:
    """The progress of a Job."""

    active: list[Object]
    """Pods that have not ended and are not being deleted."""
    terminating: int
    """Pods that are being deleted and have not ended."""
    counted: list[Object]
    """Pods that this status counts: their finalizer may be removed."""
    held: int
    """Pods that still have the finalizer."""
    succeeded: int
    """Pods, or indexes of an Indexed Job."""
    failed: int
    uncounted: dict[str, list[str]]
    """Uids that are counted in the two numbers above and not yet in the status' own."""
    completed: frozenset[int]
    failed_indexes: frozenset[int]

    @property
    def settled(self) -> bool:
        """Return whether every pod has ended and is counted in the status."""
        return not (self.active or self.terminating or self.held or any(self.uncounted.values()))


def count_pods(job: Object, pods: Sequence[Object]) -> Counts:
    """Count a Job's pods and add the numbers in its status."""
    status, indexed = job.get("status") or {}, is_indexed(job)
    held = [pod for pod in pods if is_held(pod)]
    own = [pod for pod in held if fits(job, pod)]
    # Already counted as failed, whatever their phase becomes.
    given_up = _uncounted_uids(status, "failed")
    early = job["spec"]["podReplacementPolicy"] == "TerminatingOrFailed"
    lost, done = [], []
    for pod in own:
        phase = (pod.get("status") or {}).get("phase", "Pending")
        # A pod that is being deleted has failed if it may be replaced before its end.
        failed = phase == "Failed" or (early and is_deleting(pod) and not has_ended(pod))
        if failed or pod["metadata"]["uid"] in given_up:
            lost.append(pod)
        if phase == "Succeeded" and pod["metadata"]["uid"] not in given_up:
            done.append(pod)
    completed = parse_indexes(status.get("completedIndexes", "")) | {index_of(pod) for pod in done if indexed}
    broken = parse_indexes(status.get("failedIndexes", ""))
    # A failed Job stops its pods itself: their failures do not count against their indexes.
    if has_own_limits(job) and condition(job, "FailureTarget") is None:
        broken |= {index_of(pod) for pod in lost if annotated(pod, FAILURES, 0) >= job["spec"]["backoffLimitPerIndex"]}
        # The failure of an unfinished index counts once a later pod of the index carries it; until then this pod does.
        latest: dict[int, int] = {}
        for pod in pods:
            latest[index_of(pod)] = max(latest.get(index_of(pod), 0), annotated(pod, FAILURES, 0))
        settled = completed | broken
        lost = [p for p in lost if index_of(p) in settled or latest[index_of(p)] > annotated(p, FAILURES, 0)]
    ended = {"failed": lost} if indexed else {"failed": lost, "succeeded": done}
    uids = {pod["metadata"]["uid"] for pod in held}
    uncounted = {}
    for name, some in ended.items():
        kept = [uid for uid in _uncounted_uids(status, name) if uid in uids]
        uncounted[name] = kept + [uid for pod in some if (uid := pod["metadata"]["uid"]) not in kept]
    return Counts(
        active=[pod for pod in pods if not is_deleting(pod) and not has_ended(pod)],
        terminating=sum(is_deleting(pod) and not has_ended(pod) for pod in pods),
        counted=[*done, *lost, *(pod for pod in held if has_ended(pod) and not fits(job, pod))],
        held=len(held),
        succeeded=len(completed) if indexed else _total(status, "succeeded", held) + len(uncounted["succeeded"]),
        failed=_total(status, "failed", held) + len(uncounted["failed"]),
        uncounted=uncounted,
        completed=completed,
        failed_indexes=broken - completed,
    )


def is_indexed(job: Object) -> bool:
    """Return whether each pod of the Job has an index."""
    return bool(job["spec"]["completionMode"] == "Indexed")


def fits(job: Object, pod: Object) -> bool:
    """Return whether the pod's index is below the Job's completions."""
    return not is_indexed(job) or 0 <= index_of(pod) < int(job["spec"]["completions"])


def has_own_limits(job: Object) -> bool:
    """Return whether each index has its own limit of retries."""
    return job["spec"].get("backoffLimitPerIndex") is not None


def is_held(pod: Object) -> bool:
    """Return whether the pod has the Job controller's finalizer."""
    return TRACKING in (pod["metadata"].get("finalizers") or [])


def _total(status: Object, name: str, held: Iterable[Object]) -> int:
    """Return a count of a Job's status, with the pods not yet in the count.

    They are the pods in ``uncountedTerminatedPods`` that are not in ``held``: their finalizer was removed.
    """
    uids = {pod["metadata"]["uid"] for pod in held}
    return int(status.get(name, 0)) + sum(uid not in uids for uid in _uncounted_uids(status, name))


def _uncounted_uids(status: Object, name: str) -> list[str]:
    return (status.get("uncountedTerminatedPods") or {}).get(name) or []
