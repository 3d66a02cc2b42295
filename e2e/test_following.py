"""Replicas follow the load up and down, through silent pods and rollouts, and no request fails."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.clusters.cluster import Cluster
from e2e.open_loop import HEAD, OpenLoopLoad, open_loop_load, row
from e2e.test_scaling import explain, is_ready, replicas
from e2e.waiting import eventually

MODEL = {"uri": "file:///models/adder", "parameters": {"baseMicroseconds": 50_000}}
"""80 rows a second of a replica, in batches of four."""
QUEUE = {"timeoutMilliseconds": 60_000, "maxRows": 16_384}
ONCE, SIXFOLD = 25, 150
TIMEOUT_S = 60.0


@pytest.fixture
def short_window(cluster: Cluster) -> Iterator[None]:
    """Let replicas fall after eight quiet seconds instead of five minutes."""
    system = cluster.within("shoal-system")

    def restart(window_s: int) -> None:
        system.kubectl("set", "env", "deployment/shoal-operator", f"SHOAL_OPERATOR_SCALE_DOWN_WINDOW_S={window_s}")
        system.kubectl("rollout", "status", "deployment/shoal-operator", "--timeout=60s")

    restart(8)
    yield
    restart(300)


def apply_follower(namespace: Cluster, batch_size: int = 4) -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 4, "targetQueueDepth": 4}
    # Pods that go take requests until every router knows, as by default.
    rollout, batching = {"drainDelaySeconds": 2}, {"maxBatchSize": batch_size}
    namespace.apply(model=MODEL, scaling=scaling, rollout=rollout, batching=batching, queue=QUEUE)


def counted(namespace: Cluster, calls: OpenLoopLoad, number: int, since_s: float) -> None:
    """Wait until so many requests that were sent from then on have ended."""
    eventually(lambda: len(calls.since(since_s)) >= number, lambda: explain(namespace))


@pytest.mark.usefixtures("short_window")
def test_six_times_the_load_and_back_costs_no_request(namespace: Cluster) -> None:
    apply_follower(namespace)
    namespace.until_ready()

    with open_loop_load(namespace, ONCE, timeout_s=TIMEOUT_S) as calls:
        counted(namespace, calls, 100, 0)
        assert replicas(namespace) == (1, 1, 1, 1)
        risen_s, calls.rate = time.monotonic(), SIXFOLD
        eventually(lambda: replicas(namespace)[0] >= 3, lambda: explain(namespace))
        asked_s = time.monotonic()
        eventually(lambda: replicas(namespace)[3] >= 3, lambda: explain(namespace), within_s=90)
        ready_s = time.monotonic()
        counted(namespace, calls, 10 * SIXFOLD, ready_s)
        fallen_s, calls.rate = time.monotonic(), ONCE
        eventually(lambda: replicas(namespace) == (1, 1, 1, 1), lambda: explain(namespace), within_s=180)
        alone_s = time.monotonic()
        counted(namespace, calls, 100, alone_s)

    phases = [
        ("1x", 0.0, risen_s, ""),
        ("6x, one replica", risen_s, ready_s, f"asked for in {asked_s - risen_s:.1f} s, {ready_s - risen_s:.1f} s"),
        ("6x, more replicas", ready_s, fallen_s, ""),
        ("1x, falling", fallen_s, alone_s, f"one again after {alone_s - fallen_s:.1f} s"),
        ("1x", alone_s, time.monotonic(), ""),
    ]
    lines = (row(name, [c for c in calls.since(begun) if c.begun_s < end], note) for name, begun, end, note in phases)
    print(HEAD, *lines, sep="\n")  # noqa: T201 (`pytest -s` shows it)
    assert set(calls.statuses()) == {"200"}, calls.refusals[:3]


@pytest.mark.usefixtures("short_window")
def test_a_rollout_in_a_burst_costs_no_request_and_no_replica(namespace: Cluster) -> None:
    apply_follower(namespace)
    namespace.until_ready()

    with open_loop_load(namespace, SIXFOLD, timeout_s=TIMEOUT_S) as calls:
        eventually(lambda: replicas(namespace)[3] >= 3, lambda: explain(namespace), within_s=90)
        before = {pod["metadata"]["uid"] for pod in namespace.get("pods")}
        held = []
        apply_follower(namespace, batch_size=5)

        def rolled() -> bool:
            held.append(replicas(namespace)[0])
            return not before & {pod["metadata"]["uid"] for pod in namespace.get("pods")}

        eventually(rolled, lambda: explain(namespace), within_s=150)
        namespace.until_ready()

    assert set(calls.statuses()) == {"200"}, calls.refusals[:3]
    assert min(held) >= 3


@pytest.mark.usefixtures("short_window")
def test_while_a_ready_pod_says_nothing_replicas_do_not_fall(namespace: Cluster) -> None:
    apply_follower(namespace)
    namespace.until_ready()
    counts = []
    with open_loop_load(namespace, SIXFOLD) as calls:
        eventually(lambda: replicas(namespace)[3] >= 3, lambda: explain(namespace), within_s=90)
        with silence(namespace) as silent:
            calls.rate = 1
            while True:
                count = namespace.get("infsvc", "adder")["spec"]["replicas"]
                if not is_ready(namespace.get("pods", silent)):
                    break
                counts.append(count)

    assert counts == sorted(counts)
    assert counts, "it was unready at once"
    eventually(lambda: replicas(namespace)[0] < counts[-1], lambda: explain(namespace), within_s=120)


@contextmanager
def silence(cluster: Cluster) -> Iterator[str]:
    """Stop the proxy of a ready pod from responding until the block ends; yield the pod's name."""
    pod = next(each for each in cluster.get("pods") if is_ready(each))
    processes = [int(path.parent.name) for path in cluster.processes("shoal_proxy", pod["metadata"]["uid"])]
    assert processes
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield pod["metadata"]["name"]
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)
