"""A burst that one pod cannot serve in time: what it refuses is demand, and replicas come for it."""

import time

from e2e.clusters.cluster import Cluster
from e2e.open_loop import open_loop_load
from e2e.test_scaling import explain, replicas
from e2e.waiting import eventually

ADDER = {"uri": "file:///models/adder", "parameters": {"baseMicroseconds": 5_000, "perRowMicroseconds": 10_000}}
"""95 rows a second at most in batches of which two fit 200 ms."""


def test_rejected_rows_add_replicas(namespace: Cluster) -> None:
    namespace.apply(
        model=ADDER,
        batching={"maxBatchSize": 32, "latencyObjectiveMilliseconds": 200},
        scaling={"minReplicas": 1, "maxReplicas": 6},
    )
    namespace.until_ready()

    with open_loop_load(namespace, 30) as calls:
        eventually(lambda: calls.statuses()["200"] > 150)
        assert replicas(namespace) == (1, 1, 1, 1)
        calls.rate = 180
        eventually(lambda: replicas(namespace)[0] >= 3, lambda: explain(namespace))
        eventually(lambda: replicas(namespace)[3] >= 3, lambda: explain(namespace), within_s=90)
        message = namespace.condition("adder", "ScalingActive")["message"]
        ready_s = time.monotonic() + 3
        eventually(lambda: calls.statuses(ready_s)["200"] > 900)
        seen = calls.statuses(ready_s)

        # An operator that is killed in panic comes back at the scale that is there, and says anew why it is.
        calls.rate = 30
        held = replicas(namespace)[0]
        namespace.within("shoal-system").kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
        eventually(lambda: "would suffice" in namespace.condition("adder", "ScalingActive")["message"], within_s=90)
        assert replicas(namespace)[0] == held

    assert "rows/s offered" in message
    assert replicas(namespace)[0] <= 4
    assert seen["200"] > 0.9 * seen.total(), seen
