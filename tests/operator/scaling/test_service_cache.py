"""The service cache: services to read, their ready pods, and reads older than the operator's own write."""

from typing import Any

import pytest

from shoal_operator.manifests.labels import TEMPLATE_HASH_ANNOTATION
from shoal_operator.scaling.decision import ScalingContext
from shoal_operator.scaling.service_cache import CachedService, Replica, ScaledService, scaled_service
from shoal_operator.scaling.targets import ScalingTargets, target_rows
from shoal_schema.decoding import parse_spec
from shoal_schema.fields.declaring import Json
from tests.operator.samples import EVERYTHING, MINIMAL, service, with_fields
from tests.operator.worlds import unschedulable


def pod(name: str, ip: str | None = "10.0.0.1", *, ready: bool = True, **metadata: str) -> Json:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", **metadata},
        "status": {"podIP": ip, "conditions": conditions},
    }


def scaling(cache: CachedService) -> ScaledService:
    assert cache.scaled is not None
    return cache.scaled


HELD = 64 + 2 * 16
"""Rows that a pod of `EVERYTHING` can hold: its queue, one batch at the runtime, one ahead."""


def replicas(cache: CachedService) -> list[int]:
    return [cache.scaled.replicas] if cache.scaled else []


def scaled(spec: Json) -> ScaledService | None:
    return scaled_service(parse_spec(service(spec)), service(spec)["metadata"])


def test_scaling_comes_from_the_spec() -> None:
    found = scaled(EVERYTHING)

    assert found is not None
    assert found.targets == ScalingTargets(2, 8, 24, full_batch_rows=16, most_rows=HELD)
    assert found.replicas == 3


def test_batch_size_and_objective_come_from_the_spec() -> None:
    batching = {"maxBatchSize": 8, "latencyObjectiveMilliseconds": 50}
    found = scaled(with_fields(MINIMAL, scaling={"maxReplicas": 2}, batching=batching))

    assert found is not None
    assert found.targets == ScalingTargets(1, 2, None, full_batch_rows=8, objective_s=0.05, most_rows=1024 + 2 * 8)


@pytest.mark.parametrize(
    "runtime",
    [
        {"instances": 4},
        {"resources": {"limits": {"nvidia.com/gpu": 4}}},
        {"image": "other:1", "port": 8000},
    ],
)
def test_batches_that_run_at_a_time_count_each(runtime: Json) -> None:
    batching = {"maxBatchSize": 8, "inFlight": 4 if "port" in runtime else 1}
    found = scaled(
        with_fields(MINIMAL, scaling={"maxReplicas": 2, "minReplicas": 0}, batching=batching, runtime=runtime)
    )

    assert found is not None
    assert found.targets.full_batch_rows == 32
    assert target_rows(found.targets, None) == 64
    assert found.targets.most_rows == 1024 + 5 * 8
    assert found.zero is not None
    assert found.zero.per_replica == 64


def test_a_service_without_scaling_or_with_anothers_or_with_bounds_that_contradict_does_not_scale() -> None:
    assert scaled(MINIMAL) is None
    assert scaled(with_fields(MINIMAL, scaling={"mode": "External", "maxReplicas": 4})) is None
    assert scaled(with_fields(MINIMAL, scaling={"minReplicas": 3, "maxReplicas": 2})) is None


def test_invalid_spec_keeps_the_previous_scaling() -> None:
    broken: list[Any] = [{}, {"maxReplicas": "8"}, []]
    cache = CachedService()
    cache.observe(service(EVERYTHING, generation=4), [])
    for spec in (with_fields(MINIMAL, scaling=each) for each in broken):
        cache.observe(service(spec, generation=5), [pod("a")])

        assert scaling(cache).targets == ScalingTargets(2, 8, 24, full_batch_rows=16, most_rows=HELD)
        assert len(cache.replicas) == 1


def test_read_older_than_the_operators_write_is_ignored() -> None:
    cache = CachedService()
    cache.observe(service(EVERYTHING, generation=4), [])
    cache.record_write(scaling(cache), 7)

    cache.observe(service(EVERYTHING, generation=4), [])
    assert replicas(cache) == [7]
    cache.observe(service(with_fields(EVERYTHING, replicas=5), generation=5), [])
    assert replicas(cache) == [5]


def test_a_new_service_of_the_same_name_starts_anew() -> None:
    cache = CachedService()
    cache.observe(service(EVERYTHING, generation=9), [])
    cache.observe(service(with_fields(EVERYTHING, replicas=2), generation=1, uid="other"), [])

    assert replicas(cache) == [2]


def test_only_ready_pods_that_are_not_stopping_are_read() -> None:
    cache = CachedService()
    pods = [
        pod("a"),
        pod("b", "10.0.0.2", ready=False),
        pod("c", "10.0.0.3", deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("d", None),
    ]
    cache.observe(service(EVERYTHING), pods)

    assert cache.replicas == (Replica("uid-a", "10.0.0.1", "a"),)
    cache.observe(service(EVERYTHING), [pod("a", ready=False)])
    assert not cache.replicas


def context(cache: CachedService) -> ScalingContext:
    return cache.context


def test_start_time_is_measured_from_first_observation_to_readiness() -> None:
    cache = CachedService()
    cache.observe(service(EVERYTHING), [pod("old", ready=False)], 100.0)
    cache.observe(service(EVERYTHING), [pod("old"), pod("a", ready=False)], 110.0)
    assert context(cache).start_s is None  # the old pod's start is unknown
    cache.observe(service(EVERYTHING), [pod("old"), pod("a", ready=False), pod("b", ready=False)], 120.0)
    cache.observe(service(EVERYTHING), [pod("old"), pod("a"), pod("b", ready=False)], 130.0)
    assert context(cache).start_s == 20.0
    cache.observe(service(EVERYTHING), [pod("old"), pod("a", ready=False), pod("b")], 160.0)
    assert context(cache).start_s == 30.0
    cache.observe(service(EVERYTHING), [pod("old"), pod("a"), pod("b")], 900.0)
    assert context(cache).start_s == 30.0  # one that was unready for a while did not start again


def test_a_rollout_and_pods_without_a_node_are_noted() -> None:
    def templated(name: str, text: str) -> Json:
        return pod(name, annotations={TEMPLATE_HASH_ANNOTATION: text})  # type: ignore[arg-type]

    cache = CachedService()
    cache.observe(service(EVERYTHING), [templated("a", "1"), templated("b", "1")])
    assert not context(cache).rolling
    cache.observe(service(EVERYTHING), [templated("a", "1"), templated("b", "2")])
    assert context(cache).rolling

    waits = pod("c", None, ready=False)
    waits["status"]["conditions"] += unschedulable("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    cache.observe(service(EVERYTHING), [pod("a"), waits])
    assert context(cache).unschedulable == 1


def test_pod_missing_from_a_read_is_removed_without_an_event() -> None:
    cache = CachedService()
    cache.observe(service(EVERYTHING), [pod("a"), pod("b", "10.0.0.2"), pod("c", "10.0.0.3")])
    cache.observe(service(EVERYTHING), [pod("b", "10.0.0.2")])

    assert cache.replicas == (Replica("uid-b", "10.0.0.2", "b"),)


def test_a_service_that_stops_scaling_is_not_scaled() -> None:
    cache = CachedService()
    cache.observe(service(EVERYTHING), [])
    cache.observe(service(MINIMAL, generation=2), [])
    assert replicas(cache) == []


def test_a_service_with_an_objective_is_watched_though_it_does_not_scale() -> None:
    cache = CachedService()
    cache.observe(service(with_fields(MINIMAL, batching__latencyObjectiveMilliseconds=50)), [pod("a")])
    replicas = (Replica("uid-a", "10.0.0.1", "a"),)
    assert (cache.scaled, cache.has_objective, cache.follows_load, cache.replicas) == (None, True, True, replicas)

    cache.observe(service(MINIMAL, generation=2), [])
    assert not cache.follows_load
