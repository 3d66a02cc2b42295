"""The autoscaler's loop: writes of decisions, reports of loads and of missing data."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from shoal_operator.children.observation import Key
from shoal_operator.errors import ApiError
from shoal_operator.loop.records import Records
from shoal_operator.metrics import Metrics
from shoal_operator.scaling.autoscaler import Autoscaler
from shoal_operator.scaling.decision import ScalingLimit
from shoal_operator.scaling.load_state import LoadState
from shoal_operator.scaling.reading import Reading
from shoal_operator.scaling.report import NoLoad, ScalingReport
from shoal_operator.scaling.service_cache import CachedService, Replica
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces.fleet import Fleet as Shown
from shoal_schema.interfaces.load import RowsChecked
from shoal_schema.resource.conditions import Reason
from tests.operator.fakes import FakeCluster, FakeProxies, NoActivators, clock, run
from tests.operator.loads import holding
from tests.operator.samples import MINIMAL, service, with_fields
from tests.operator.worlds import POD_UID, pod

CAT = Key("default", "cat")
OBJECTIVE = with_fields(MINIMAL, batching__latencyObjectiveMilliseconds=50)
SPEC = with_fields(MINIMAL, scaling={"maxReplicas": 8, "targetQueueDepth": 10})


class World:
    """A service with one ready pod."""

    def __init__(self, cluster: FakeCluster | None = None, spec: Json = SPEC) -> None:
        self.cluster = cluster or FakeCluster()
        self.records, self.proxies, self.changed = Records(), FakeProxies(), list[Key]()
        self.load = holding(0)
        self.observe(service(spec), [pod()])
        self.autoscaler = Autoscaler(
            self.records, self.proxies, self.changed.append, clock, window_s=300, scale_to_zero=NoActivators()
        )

    async def tick(self, rows: int | None, *, attainable: bool = True) -> None:
        self.proxies.readings[POD_UID] = Reading() if rows is None else Reading(holding(rows, attainable=attainable))
        async with asyncio.TaskGroup() as reconciliations:
            self.autoscaler.tick(self.cluster, reconciliations)

    def observe(self, resource: Json, pods: list[Json]) -> None:
        self.records.get(CAT, CachedService).observe(resource, pods)

    @property
    def state(self) -> LoadState:
        return self.records.find(CAT, LoadState) or LoadState()

    def said(self) -> ScalingReport:
        said = self.state.reported
        assert said is not None
        return said


def test_load_raises_the_replicas_once() -> None:
    async def main() -> None:
        world = World()
        await world.tick(35)
        await world.tick(35)
        assert world.cluster.scales == [(CAT, 4)]
        assert world.said().reason is Reason.FOLLOWING_LOAD
        assert world.changed == [CAT]

    run(main())


def test_replicas_set_during_a_decision_are_not_overwritten() -> None:
    async def main() -> None:
        world = World()
        world.observe(service(with_fields(SPEC, replicas=9), generation=2), [pod()])
        world.cluster.services[CAT] = service(with_fields(SPEC, replicas=1), generation=3)  # set after that look
        await world.tick(0)
        assert world.cluster.scales == []
        assert world.cluster.events == []
        assert CAT in world.changed, "it is looked at again"
        world.observe(world.cluster.services[CAT], [pod()])
        await world.tick(0)
        assert world.cluster.scales == []

    run(main())


def test_each_change_is_reported_once_with_its_reason() -> None:
    async def main() -> None:
        world = World()
        world.cluster.services[CAT] = service(SPEC)
        await world.tick(35)
        (event,) = world.cluster.events
        assert (event["type"], event["reason"]) == ("Normal", "ScaledUp")
        assert event["message"] == "1 to 4 replicas: 35 rows in flight, 10 per replica, stable window"
        assert event["involvedObject"]["uid"] == service(SPEC)["metadata"]["uid"]
        await world.tick(35)
        assert len(world.cluster.events) == 1

    run(main())


@pytest.mark.parametrize(
    ("replicas", "bounds", "message"),
    [
        (9, {"maxReplicas": 4}, "9 to 4 replicas: spec.replicas 9 exceeds scaling.maxReplicas 4"),
        (0, {"minReplicas": 1, "maxReplicas": 4}, "0 to 1 replica: spec.replicas 0 is less than scaling.minReplicas 1"),
    ],
)
def test_replicas_out_of_bounds_are_reported_as_such(replicas: int, bounds: Json, message: str) -> None:
    async def main() -> None:
        world = World(spec=with_fields(MINIMAL, replicas=replicas, scaling=bounds))
        world.cluster.services[CAT] = service(with_fields(MINIMAL, replicas=replicas, scaling=bounds))
        await world.tick(0)
        assert [event["message"] for event in world.cluster.events] == [message]

    run(main())


def test_replicas_are_written_although_the_event_fails() -> None:
    async def main() -> None:
        world = World(FakeCluster(refuse=lambda verb, what: ApiError(403, "no") if verb == "event" else None))
        await world.tick(35)
        await world.tick(35)
        assert world.cluster.scales == [(CAT, 4)]

    run(main())


def test_replicas_come_down_after_five_quiet_minutes() -> None:
    async def main() -> None:
        world = World()
        await world.tick(35)
        task = asyncio.ensure_future(world.autoscaler.run(world.cluster, 2.0))
        world.proxies.readings[POD_UID] = Reading(holding(0, time_s=1.0))
        await asyncio.sleep(290)
        assert world.cluster.scales == [(CAT, 4)]
        await asyncio.sleep(20)
        assert world.cluster.scales == [(CAT, 4), (CAT, 2)]
        await asyncio.sleep(60)
        assert world.cluster.scales == [(CAT, 4), (CAT, 2), (CAT, 1)]
        task.cancel()

    run(main())


def test_a_write_that_fails_is_tried_again_at_the_next_tick() -> None:
    async def main() -> None:
        errors = [ApiError(500, "no")]
        world = World(FakeCluster(refuse=lambda verb, what: errors.pop() if errors else None))
        await world.tick(35)
        assert world.cluster.scales == []
        await world.tick(35)
        assert world.cluster.scales == [(CAT, 4)]

    run(main())


def test_blindness_is_reported_after_a_while_and_holds_the_replicas() -> None:
    async def main() -> None:
        world = World()
        await world.tick(35)
        for _ in range(20):
            await asyncio.sleep(2)
            await world.tick(None)
        assert world.said().reason is Reason.NO_LOAD_DATA
        assert world.cluster.scales == [(CAT, 4)]
        # The load, the blindness, and two questions whether the pod is still there.
        assert world.changed == [CAT] * 4

    run(main())


def test_why_there_is_no_load_data_is_known_and_a_new_cause_is_reported() -> None:
    async def main() -> None:
        world = World()
        await world.tick(35)
        assert world.said().no_load is None
        for _ in range(20):
            await asyncio.sleep(2)
            await world.tick(None)
        assert world.said().no_load is NoLoad.UNREACHABLE
        world.observe(service(SPEC), [])
        world.changed.clear()
        for _ in range(2):
            await asyncio.sleep(2)
            await world.tick(None)
        assert world.said().no_load is NoLoad.NO_READY_POD
        assert world.changed == [CAT]
        world.observe(service(SPEC), [pod()])
        await world.tick(0)
        assert world.said().no_load is None

    run(main())


def test_deleted_pod_without_an_event_is_found_by_a_reconciliation() -> None:
    async def main() -> None:
        world = World()
        await world.tick(35)
        lost, stays = pod(uid="lost", podIP="10.0.0.2"), pod()
        world.observe(service(with_fields(SPEC, replicas=4), generation=2), [stays, lost])

        def reconcile(key: Key) -> None:
            world.observe(service(with_fields(SPEC, replicas=4), generation=2), [stays])

        world.autoscaler = Autoscaler(
            world.records, world.proxies, reconcile, clock, window_s=10, scale_to_zero=NoActivators()
        )
        task = asyncio.ensure_future(world.autoscaler.run(world.cluster, 2.0))
        world.proxies.readings[POD_UID] = Reading(holding(0, time_s=1.0))
        await asyncio.sleep(140)
        assert world.cluster.scales[-1] == (CAT, 1)
        task.cancel()

    run(main())


def test_the_pods_with_least_in_flight_are_marked_before_replicas_fall() -> None:
    async def main() -> None:
        world = World(spec=with_fields(SPEC, replicas=4))
        uids = ["idle", "busy", "busier", "quiet"]
        world.observe(service(with_fields(SPEC, replicas=4)), [pod(uid=uid) for uid in uids])
        for uid, rows in zip(uids, (0, 5, 8, 1), strict=True):
            world.proxies.readings[uid] = Reading(holding(rows))
        world.autoscaler = Autoscaler(
            world.records, world.proxies, world.changed.append, clock, window_s=1, scale_to_zero=NoActivators()
        )
        for _ in range(3):
            async with asyncio.TaskGroup() as reconciliations:
                world.autoscaler.tick(world.cluster, reconciliations)
            await asyncio.sleep(2)
        assert world.cluster.scales == [(CAT, 2)]
        assert world.cluster.costs == {"idle": -1, "quiet": -1}

    run(main())


def test_where_pods_cannot_be_marked_replicas_fall_all_the_same() -> None:
    async def main() -> None:
        errors = [ApiError(403, "no")]
        world = World(FakeCluster(refuse=lambda verb, what: errors.pop() if what == "Pod" and errors else None))
        world.observe(service(with_fields(SPEC, replicas=2), generation=2), [pod(), pod(uid="other")])
        world.proxies.readings["other"] = Reading(holding(0))
        world.autoscaler = Autoscaler(
            world.records, world.proxies, world.changed.append, clock, window_s=1, scale_to_zero=NoActivators()
        )
        for _ in range(3):
            await world.tick(0)
            await asyncio.sleep(2)
        assert errors == []
        assert world.cluster.scales == [(CAT, 1)]

    run(main())


def test_what_the_last_tick_found_is_shown_as_metrics() -> None:
    async def main() -> str:
        world, metrics = World(), Metrics()
        metrics.show_scaling(world.autoscaler.last_decisions)
        await world.tick(35)
        return metrics.text().decode()

    shown = run(main())

    for name, value in (("desired", 4), ("ready", 1), ("rows", 35), ("target", 10), ("panic", 1)):
        assert f'shoal_operator_scaling_{name}{{namespace="default",service="cat"}} {value}.0\n' in shown


def test_what_the_status_of_a_service_says_is_shown_as_metrics_until_the_service_has_gone() -> None:
    metrics, reported = Metrics(), dict[Key, Json]()
    metrics.show_services(lambda: reported)
    condition = {"type": "Ready", "status": "False", "reason": "ModelDownloadFailed", "message": "no such bucket"}
    reported[CAT] = {"replicas": 3, "readyReplicas": 1, "conditions": [condition]}

    shown = metrics.text().decode()
    reported.clear()

    of = 'namespace="default",service="cat"'
    assert f"shoal_operator_service_replicas{{{of}}} 3.0\n" in shown
    assert f"shoal_operator_service_replicas_ready{{{of}}} 1.0\n" in shown
    labels = 'condition="Ready",namespace="default",reason="ModelDownloadFailed",service="cat",status="False"'
    assert f"shoal_operator_service_condition{{{labels}}} 1.0\n" in shown
    assert 'service="cat"' not in metrics.text().decode()


def test_a_limit_is_reported_once_and_taken_back_when_it_has_been_none_for_a_minute() -> None:
    async def main() -> None:
        world = World()
        await world.tick(500)
        assert world.said().limit is ScalingLimit.MAXIMUM
        said, time_s = len(world.changed), 1000.0
        for tick in range(20):
            await asyncio.sleep(2)
            time_s += 2
            world.proxies.readings[POD_UID] = Reading(holding(75 if tick % 2 else 500, time_s=-time_s + 5000))
            async with asyncio.TaskGroup() as reconciliations:
                world.autoscaler.tick(world.cluster, reconciliations)
        assert len(world.changed) == said
        for _ in range(70):
            await asyncio.sleep(2)
            await world.tick(75)
        assert world.said().limit is None

    run(main())


def set_by(world: World, replicas: int, writer: str = "", *, spec: Json = SPEC) -> None:
    """Set the replicas as another field manager."""
    scaled = world.records.get(CAT, CachedService).scaled
    assert scaled is not None
    entry = {"manager": writer, "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    resource = service(
        with_fields(spec, replicas=replicas),
        generation=scaled.generation + 1,
        managedFields=[{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:model": {}}}}, *([entry] if writer else [])],
    )
    world.observe(resource, [pod()])


async def pass_s(world: World, seconds: float, rows: int) -> None:
    """Let time pass with so many rows in the one pod there is."""
    for _ in range(round(seconds / 2)):
        await asyncio.sleep(2)
        before = world.load
        world.load = replace(holding(rows, time_s=before.time_s + 2), row_seconds=before.row_seconds + rows * 2)
        world.proxies.readings[POD_UID] = Reading(world.load)
        async with asyncio.TaskGroup() as reconciliations:
            world.autoscaler.tick(world.cluster, reconciliations)


def test_the_sentence_follows_the_load_once_a_minute_at_most_though_the_count_stays() -> None:
    async def main() -> None:
        world = World()
        await pass_s(world, 4, 2)
        assert world.said().sentence.startswith("1 replica: 2 rows in flight")
        reported = len(world.changed)
        await pass_s(world, 180, 9)
        assert world.said().sentence.startswith("1 replica: 9 rows in flight")
        assert 1 <= len(world.changed) - reported <= 3
        reported = len(world.changed)
        for tick in range(150):
            await pass_s(world, 2, 9 + tick % 2)
        assert len(world.changed) == reported

    run(main())


def test_replicas_set_by_a_user_are_reported_at_once_and_when_scaling_resumes() -> None:
    async def main() -> None:
        world = World()
        await pass_s(world, 10, 5)
        set_by(world, 3, "kubectl")
        reported = len(world.changed)
        await pass_s(world, 4, 5)
        assert world.said().sentence.startswith("3 replicas: 5 rows in flight")
        assert "set by another writer, and held for 300 s" in world.said().sentence
        assert len(world.changed) == reported + 1
        await pass_s(world, 310, 5)
        assert world.cluster.scales == [(CAT, 2)]
        assert "outside" not in world.said().sentence
        assert world.said().conflicting_writer is None

    run(main())


def test_a_new_bound_is_reported_at_once() -> None:
    async def main() -> None:
        world = World(spec=with_fields(SPEC, replicas=2))
        await pass_s(world, 4, 0)
        assert "1 would suffice" in world.said().sentence
        set_by(world, 2, spec=with_fields(SPEC, scaling__minReplicas=2))
        await pass_s(world, 2, 0)
        assert world.said().sentence.endswith("scaling.minReplicas allows no fewer")

    run(main())


def test_failed_write_does_not_count_as_set_by_a_user() -> None:
    async def main() -> None:
        errors = [ApiError(500, "no")]
        world = World(FakeCluster(refuse=lambda verb, what: errors.pop() if errors else None))
        await pass_s(world, 2, 15)
        await pass_s(world, 2, 15)
        assert world.cluster.scales == [(CAT, 2)]
        assert "outside" not in world.said().sentence

    run(main())


def test_hpa_beside_the_autoscaler_is_reported_at_its_first_write() -> None:
    async def main() -> None:
        world = World()
        await pass_s(world, 10, 5)
        set_by(world, 3, "kube-controller-manager")
        await pass_s(world, 2, 5)
        assert world.said().conflicting_writer == "kube-controller-manager"
        await pass_s(world, 700, 5)
        assert world.said().conflicting_writer is None  # it has not written since

    run(main())


@pytest.mark.parametrize("writer", ["", "deployer"])
def test_writer_that_repeatedly_resets_replicas_is_reported(writer: str) -> None:
    async def main() -> None:
        world = World()
        await pass_s(world, 10, 5)
        for other in (None, None, writer):
            set_by(world, 4, writer)
            await pass_s(world, 2, 5)
            assert world.said().conflicting_writer == other
            await pass_s(world, 320, 5)

    run(main())


def test_a_person_who_scales_now_and_then_is_no_conflict() -> None:
    async def main() -> None:
        world = World()
        await pass_s(world, 10, 5)
        for replicas in (4, 3, 5, 2):
            set_by(world, replicas, "kubectl")
            await pass_s(world, 200, 5)
            assert world.said().conflicting_writer is None

    run(main())


def test_limit_and_figures_are_dropped_at_zero() -> None:
    async def main() -> None:
        world, asleep = World(), Asleep()
        asleep.asleep = False
        world.autoscaler = Autoscaler(
            world.records, world.proxies, world.changed.append, clock, window_s=300, scale_to_zero=asleep
        )
        await world.tick(500)
        assert world.said().limit is ScalingLimit.MAXIMUM
        assert list(world.autoscaler.last_decisions())
        asleep.asleep = True
        world.changed.clear()
        for _ in range(3):
            await world.tick(None)
        assert world.state.reported is None
        assert list(world.autoscaler.last_decisions()) == []
        assert world.changed.count(CAT) == 2, "once the news, and once whether the pod that says nothing is there"

    run(main())


class Asleep(NoActivators):
    """An activator that has the service by default."""

    asleep = True

    async def process_readings(self, key: Key, replicas: Sequence[Replica], readings: Sequence[Reading]) -> bool:
        return self.asleep


def test_service_at_zero_has_no_report_and_its_first_replicas_do_not_count_as_set_by_a_user() -> None:
    async def main() -> None:
        world, activator = World(), Asleep()
        world.autoscaler = Autoscaler(
            world.records, world.proxies, world.changed.append, clock, window_s=300, scale_to_zero=activator
        )
        activator.asleep = False
        await pass_s(world, 4, 5)
        activator.asleep = True
        await pass_s(world, 4, 0)
        assert world.state.reported is None
        activator.asleep = False
        set_by(world, 4)
        await pass_s(world, 4, 30)
        assert "outside" not in world.said().sentence
        assert world.said().sentence.startswith("4 replicas")

    run(main())


def test_a_service_that_no_longer_scales_is_forgotten() -> None:
    async def main() -> None:
        world = World()
        await world.tick(5)
        world.records.drop(CAT)
        await world.tick(5)
        assert world.state.reported is None

    run(main())


def test_objective_is_reported_once_without_scaling() -> None:
    async def main() -> None:
        world = World(spec=OBJECTIVE)
        assert world.state.attainable is None
        for answer in (True, True, False, True, False):
            await world.tick(35, attainable=answer)
        assert world.state.attainable == {POD_UID: False}
        assert world.changed == [CAT, CAT]
        assert world.cluster.scales == []

    run(main())


def test_unreachable_pod_is_reported_once_and_retried() -> None:
    async def main() -> None:
        world = World(spec=OBJECTIVE)
        task = asyncio.ensure_future(world.autoscaler.run(world.cluster, 2.0))
        await asyncio.sleep(2)
        assert world.changed == [CAT]
        await asyncio.sleep(100)
        assert world.state.attainable == {}
        # Once the news, and each half minute the question whether the pod is still there.
        assert world.changed == [CAT] * 5
        task.cancel()

    run(main())


def test_an_objective_that_is_taken_back_is_forgotten() -> None:
    async def main() -> None:
        world = World(spec=OBJECTIVE)
        await world.tick(5, attainable=True)
        world.observe(service(MINIMAL, generation=2), [])
        await world.tick(5, attainable=True)
        assert world.state.attainable is None

    run(main())


def test_how_long_ago_a_service_was_read_is_reported_of_the_one_that_waits_longest() -> None:
    async def main() -> None:
        world = World()
        assert world.autoscaler.oldest_reading_s() == 0
        await world.tick(0)
        await asyncio.sleep(5)
        assert world.autoscaler.oldest_reading_s() == 5
        await world.tick(0)
        assert world.autoscaler.oldest_reading_s() == 0
        world.records.drop(CAT)
        await asyncio.sleep(5)
        await world.tick(0)
        assert world.autoscaler.oldest_reading_s() == 0

    run(main())


def test_fleet_report_includes_services_of_fixed_replicas() -> None:
    async def main() -> None:
        world = World(spec=MINIMAL)
        assert world.autoscaler.fleet_report() is None
        ticking = asyncio.create_task(world.autoscaler.run(world.cluster, interval_s=0.01))
        world.proxies.readings[POD_UID] = Reading(holding(7))
        while not (shown := msgspec.json.decode(world.autoscaler.fleet_report() or b"{}", type=Shown)).services:  # noqa: ASYNC110 (ticks have no event)
            await asyncio.sleep(0.01)
        ticking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ticking

        [service] = shown.services
        assert (service.namespace, service.name) == (CAT.namespace, CAT.name)
        assert [each.load for each in service.pods] == [holding(7)]
        assert world.autoscaler.fleet_report() is None

    run(main())


def test_fleet_report_has_the_pods_of_a_candidate_which_are_read_only_for_it() -> None:
    async def main() -> None:
        world = World()
        world.records.get(CAT, CachedService).candidates = (Replica("candidate", "127.0.0.2", "cat-candidate-a"),)
        world.proxies.readings["candidate"] = Reading(holding(3))
        await world.tick(7)
        assert "candidate" not in world.proxies.asked
        world.autoscaler.fleet_report()
        await world.tick(7)

        assert [(each.name, each.load) for each in world.state.candidates] == [("cat-candidate-a", holding(3))]
        assert [each.name for each in world.state.pods or ()] != ["cat-candidate-a"]

    run(main())


def test_without_requests_services_of_fixed_replicas_are_read_twice_a_minute() -> None:
    async def main() -> None:
        world = World(spec=MINIMAL)
        for _ in range(30):
            await world.tick(7)
            await asyncio.sleep(2)
        assert world.proxies.asked == [POD_UID] * 2

    run(main())


def test_a_chosen_precision_is_reported_once_without_scaling() -> None:
    async def main() -> None:
        world = World(spec=MINIMAL)
        world.proxies.readings[POD_UID] = Reading(replace(holding(0), precision="TF32"))
        for _ in range(3):
            async with asyncio.TaskGroup() as reconciliations:
                world.autoscaler.tick(world.cluster, reconciliations)
            await asyncio.sleep(30)
        assert world.state.precisions == {POD_UID: "TF32"}
        assert world.changed.count(CAT) == 1

    run(main())


def test_mixed_rows_are_reported_once_without_scaling() -> None:
    async def main() -> None:
        world = World(spec=MINIMAL)
        assert world.state.independent is None
        for rows in (RowsChecked(independent=True, checked=9), RowsChecked(independent=False, checked=12), None):
            load = replace(holding(0), rows=rows)
            world.proxies.readings[POD_UID] = Reading() if rows is None else Reading(load)
            async with asyncio.TaskGroup() as reconciliations:
                world.autoscaler.tick(world.cluster, reconciliations)
            await asyncio.sleep(30)
        assert world.state.independent == {POD_UID: False}
        assert world.changed.count(CAT) == 3, "both words, and the question whether the silent pod is still there"

    run(main())
