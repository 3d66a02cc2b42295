"""The fleet: whose proxies are read, which pods are ready, and what an old look may not undo."""

from typing import Any

from shoal_operator.autoscaler.aim import Aim
from shoal_operator.autoscaler.decision import Surroundings
from shoal_operator.load.fleet import Fleet, Replica, Scaled, Watched, scaled_from
from shoal_operator.manifests.labels import TEMPLATE_HASH_ANNOTATION
from shoal_operator.planning.observation import Key
from shoal_schema.declaring import Json
from shoal_schema.decoding import parse_spec
from tests.operator.samples import EVERYTHING, MINIMAL, service, with_fields
from tests.operator.worlds import unschedulable

CAT = Key("default", "cat")


def pod(name: str, ip: str | None = "10.0.0.1", *, ready: bool = True, **metadata: str) -> Json:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", **metadata},
        "status": {"podIP": ip, "conditions": conditions},
    }


def scaling(fleet: Fleet) -> Scaled:
    scaled = next(fleet.watched()).scaled
    assert scaled is not None
    return scaled


HELD = 64 + 3 * 16
"""Rows that a pod of `EVERYTHING` can hold: its queue, two batches at the runtime, one ahead."""


def replicas(fleet: Fleet) -> list[int]:
    return [service.scaled.replicas for service in fleet.watched() if service.scaled]


def scaled(spec: Json) -> Scaled | None:
    return scaled_from(parse_spec(service(spec)), service(spec)["metadata"])


def test_scaling_comes_from_the_spec() -> None:
    found = scaled(EVERYTHING)

    assert found is not None
    assert found.aim == Aim(2, 8, 24, full_batch_rows=16, most_rows=HELD)
    assert found.replicas == 3


def test_what_the_target_is_learned_from_comes_from_the_spec() -> None:
    batching = {"maxBatchSize": 8, "latencyObjectiveMilliseconds": 50}
    found = scaled(with_fields(MINIMAL, scaling={"maxReplicas": 2}, batching=batching))

    assert found is not None
    assert found.aim == Aim(1, 2, None, full_batch_rows=8, objective_s=0.05, most_rows=1024 + 2 * 8)


def test_a_service_without_scaling_or_with_anothers_or_with_bounds_that_contradict_does_not_scale() -> None:
    assert scaled(MINIMAL) is None
    assert scaled(with_fields(MINIMAL, scaling={"mode": "External", "maxReplicas": 4})) is None
    assert scaled(with_fields(MINIMAL, scaling={"minReplicas": 3, "maxReplicas": 2})) is None


def test_a_spec_that_cannot_be_read_leaves_what_was_asked_for_before() -> None:
    broken: list[Any] = [{}, {"maxReplicas": "8"}, []]
    fleet = Fleet()
    fleet.see(CAT, service(EVERYTHING, generation=4), [])
    for spec in (with_fields(MINIMAL, scaling=each) for each in broken):
        fleet.see(CAT, service(spec, generation=5), [pod("a")])

        assert scaling(fleet).aim == Aim(2, 8, 24, full_batch_rows=16, most_rows=HELD)
        assert [len(each.replicas) for each in fleet.watched()] == [1]


def test_a_look_that_is_older_than_our_own_write_is_ignored() -> None:
    fleet = Fleet()
    fleet.see(CAT, service(EVERYTHING, generation=4), [])
    fleet.wrote_replicas(CAT, scaling(fleet), 7)

    fleet.see(CAT, service(EVERYTHING, generation=4), [])
    assert replicas(fleet) == [7]
    fleet.see(CAT, service(with_fields(EVERYTHING, replicas=5), generation=5), [])
    assert replicas(fleet) == [5]


def test_a_new_service_of_the_same_name_starts_anew() -> None:
    fleet = Fleet()
    fleet.see(CAT, service(EVERYTHING, generation=9), [])
    fleet.see(CAT, service(with_fields(EVERYTHING, replicas=2), generation=1, uid="other"), [])

    assert replicas(fleet) == [2]


def test_only_ready_pods_that_stay_are_asked() -> None:
    fleet = Fleet()
    pods = [
        pod("a"),
        pod("b", "10.0.0.2", ready=False),
        pod("c", "10.0.0.3", deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("d", None),
    ]
    fleet.see(CAT, service(EVERYTHING), pods)

    assert [service.replicas for service in fleet.watched()] == [(Replica("uid-a", "10.0.0.1", "a"),)]
    fleet.see(CAT, service(EVERYTHING), [pod("a", ready=False)])
    assert [service.replicas for service in fleet.watched()] == [()]


def around(fleet: Fleet) -> Surroundings:
    return next(fleet.watched()).around


def test_how_long_pods_take_to_start_is_seen_from_their_first_look_to_their_readiness() -> None:
    fleet = Fleet()
    fleet.see(CAT, service(EVERYTHING), [pod("old", ready=False)], 100.0)
    fleet.see(CAT, service(EVERYTHING), [pod("old"), pod("a", ready=False)], 110.0)
    assert around(fleet).start_s is None  # the old pod's start is unknown
    fleet.see(CAT, service(EVERYTHING), [pod("old"), pod("a", ready=False), pod("b", ready=False)], 120.0)
    fleet.see(CAT, service(EVERYTHING), [pod("old"), pod("a"), pod("b", ready=False)], 130.0)
    assert around(fleet).start_s == 20.0
    fleet.see(CAT, service(EVERYTHING), [pod("old"), pod("a", ready=False), pod("b")], 160.0)
    assert around(fleet).start_s == 30.0
    fleet.see(CAT, service(EVERYTHING), [pod("old"), pod("a"), pod("b")], 900.0)
    assert around(fleet).start_s == 30.0  # one that was unready for a while did not start again


def test_a_rollout_and_pods_without_a_node_are_noted() -> None:
    def templated(name: str, text: str) -> Json:
        return pod(name, annotations={TEMPLATE_HASH_ANNOTATION: text})  # type: ignore[arg-type]

    fleet = Fleet()
    fleet.see(CAT, service(EVERYTHING), [templated("a", "1"), templated("b", "1")])
    assert not around(fleet).rolling
    fleet.see(CAT, service(EVERYTHING), [templated("a", "1"), templated("b", "2")])
    assert around(fleet).rolling

    waits = pod("c", None, ready=False)
    waits["status"]["conditions"] += unschedulable("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    fleet.see(CAT, service(EVERYTHING), [pod("a"), waits])
    assert around(fleet).unschedulable == 1


def test_a_pod_that_a_look_does_not_find_is_gone_though_nobody_told() -> None:
    fleet = Fleet()
    fleet.see(CAT, service(EVERYTHING), [pod("a"), pod("b", "10.0.0.2"), pod("c", "10.0.0.3")])
    fleet.see(CAT, service(EVERYTHING), [pod("b", "10.0.0.2")])

    assert [service.replicas for service in fleet.watched()] == [(Replica("uid-b", "10.0.0.2", "b"),)]


def test_a_service_that_stops_scaling_or_is_deleted_is_forgotten() -> None:
    fleet = Fleet()
    fleet.see(CAT, service(EVERYTHING), [])
    fleet.see(CAT, service(MINIMAL, generation=2), [])
    assert replicas(fleet) == []
    fleet.see(CAT, service(EVERYTHING, generation=3), [])
    fleet.drop(CAT)
    assert replicas(fleet) == []


def test_a_service_with_an_objective_is_watched_though_it_does_not_scale() -> None:
    fleet = Fleet()
    fleet.see(CAT, service(with_fields(MINIMAL, batching__latencyObjectiveMilliseconds=50)), [pod("a")])
    replicas = (Replica("uid-a", "10.0.0.1", "a"),)
    assert list(fleet.watched()) == [Watched(CAT, None, has_objective=True, replicas=replicas)]

    fleet.see(CAT, service(MINIMAL, generation=2), [])
    assert list(fleet.watched()) == []


def test_a_deleted_service_with_an_objective_is_forgotten() -> None:
    fleet = Fleet()
    fleet.see(CAT, service(with_fields(EVERYTHING, batching__latencyObjectiveMilliseconds=50)), [])
    assert [watched.has_objective for watched in fleet.watched()] == [True]

    fleet.drop(CAT)
    assert list(fleet.watched()) == []
