"""Rollouts that are judged, from a changed spec to the promoted or removed candidate."""

import asyncio
import datetime
from typing import Any

from shoal_operator.cluster.api_time import timestamp
from shoal_operator.manifests.desired import CANDIDATE, CANDIDATE_POLICY, CANDIDATE_SERVICE, DEPLOYMENT, SERVICE
from shoal_operator.manifests.labels import POD_SPEC_ANNOTATION, SPEC_HASH_ANNOTATION
from shoal_operator.rollout.plans import Found
from shoal_operator.scaling.service_cache import CachedService
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces.rollout import RolloutPlan, RolloutReport
from tests.operator.rollout.rollouts import CANARY, CAT, NEWER, World, agreeing, differing
from tests.operator.samples import MINIMAL, with_fields


def uri_of(deployment: Json) -> str:
    (runtime, *_) = deployment["spec"]["template"]["spec"]["containers"]
    found: str = next(each["value"] for each in runtime["env"] if each["name"] == "SHOAL_MODEL_URI")
    return found


async def comparing(spec: Json = NEWER, before: Json = CANARY) -> World:
    """Return a world whose candidate runs."""
    world = World(before)
    await world.reconcile(2)
    world.edit(spec)
    world.find()
    await world.reconcile(3)
    return world


def plans(world: World) -> list[RolloutPlan]:
    assigned = world.judging.assigned.get(CAT)
    return [pod.plan for pod in assigned.pods if not pod.is_candidate] if assigned else []


def test_a_first_spec_is_stable_at_once() -> None:
    async def scenario() -> None:
        world = World()
        await world.reconcile(2)

        assert world.rollout == {"phase": "Stable", "stable": world.revision(DEPLOYMENT)}
        assert (world.judged["status"], world.judged["reason"]) == ("True", "NoCandidate")
        assert not world.child(CANDIDATE)
        before = len(world.cluster.writes)
        await world.reconcile(2)
        assert len(world.cluster.writes) == before

    asyncio.run(scenario())


def test_a_candidate_starts_beside_the_stable_pods_once_a_proxy_can_compare_it() -> None:
    async def scenario() -> None:
        world = World()
        await world.reconcile(2)
        stable = world.child(DEPLOYMENT)["spec"]
        world.edit(NEWER)
        await world.reconcile(2)
        assert not world.child(CANDIDATE)
        assert world.judged["reason"] == "CandidateWaiting"
        world.find()
        await world.reconcile(3)

        assert world.child(DEPLOYMENT)["spec"] == stable
        assert uri_of(world.child(CANDIDATE)) == "file:///models/newer"
        assert world.child(CANDIDATE)["spec"]["replicas"] == 1
        assert (world.rollout["phase"], world.rollout["step"], world.rollout["steps"]) == ("Comparing", 1, 2)
        assert world.rollout["candidate"] == world.revision(CANDIDATE) != world.revision(DEPLOYMENT)
        assert {(plan.candidate, plan.shadow, plan.weight) for plan in plans(world)} == {
            (world.revision(CANDIDATE), 0.1, 0.0)
        }
        assert POD_SPEC_ANNOTATION in world.child(SERVICE)["metadata"]["annotations"]
        # Pods of the candidate are none of the service's.
        selector = world.child(SERVICE)["spec"]["selector"]
        assert not selector.items() <= world.cluster.candidate_pods[CAT][0]["metadata"]["labels"].items()
        assert world.records.get(CAT, CachedService).context.rolling
        assert [each.name for each in world.records.get(CAT, CachedService).candidates] == ["cat-candidate-0"]
        before = len(world.cluster.writes)
        await world.reconcile(2)
        assert len(world.cluster.writes) == before

    asyncio.run(scenario())


def test_a_candidate_that_agrees_goes_through_all_steps_and_becomes_stable() -> None:
    async def scenario() -> None:
        world = await comparing()
        newest = world.revision(CANDIDATE)
        world.find(agreeing(100))
        await world.reconcile()
        assert (world.rollout["step"], world.rollout["weight"], world.rollout["rowsBefore"]) == (2, 50, 100)
        assert world.child(CANDIDATE)["spec"]["replicas"] == 2
        world.find(agreeing(2099))
        await world.reconcile()
        assert world.rollout["step"] == 2
        world.find(agreeing(2100))
        world.starts = False
        await world.reconciler.reconcile(CAT)
        assert world.rollout["phase"] == "Promoting"
        assert world.revision(DEPLOYMENT) == newest
        assert world.child(CANDIDATE)
        assert {plan.weight for plan in plans(world)} == {0.5}
        world.starts = True
        await world.reconcile(4)

        assert not world.child(CANDIDATE)
        assert (world.rollout["phase"], world.rollout["stable"]) == ("Stable", newest)
        assert world.rollout["figures"]["rows"] == 2100
        assert uri_of(world.child(DEPLOYMENT)) == "file:///models/newer"
        reasons = [event["reason"] for event in world.cluster.events]
        assert [each for each in reasons if each in ("Comparing", "Promoting", "NoCandidate")] == [
            *("Comparing", "Promoting", "NoCandidate")
        ]
        # The copy of the former spec restores nothing any more.
        del world.cluster.children[CAT, DEPLOYMENT]
        await world.reconcile(2)
        assert world.revision(DEPLOYMENT) == newest

    asyncio.run(scenario())


def test_a_candidate_that_fails_gets_no_request_before_it_is_removed() -> None:
    async def scenario() -> None:
        world = await comparing()
        stable = world.revision(DEPLOYMENT)
        world.find(differing())
        world.judging.known = Found(responds=True, quiet=False, reports=world.judging.known.reports)
        await world.reconcile(3)
        assert world.child(CANDIDATE)
        assert set(map(str, plans(world))) == {str(RolloutPlan())}
        world.find()
        await world.reconcile(3)

        assert not world.child(CANDIDATE)
        assert world.revision(DEPLOYMENT) == stable
        assert world.rollout["phase"] == "Failed"
        assert (world.judged["status"], world.judged["reason"]) == ("False", "SignatureChanged")
        assert "x: FP32 became INT64" in world.judged["message"]
        assert any(event["reason"] == "SignatureChanged" for event in world.cluster.events)
        ready = next(each for each in world.resource["status"]["conditions"] if each["type"] == "Ready")
        assert ready["status"] == "True"
        # It does not start again, not even by another operator.
        world.restart()
        await world.reconcile(3)
        assert not world.child(CANDIDATE)
        assert world.rollout["phase"] == "Failed"

    asyncio.run(scenario())


def test_a_failed_candidate_is_tried_again_with_other_tolerances_or_promoted_by_a_user() -> None:
    async def scenario() -> None:
        world = await comparing()
        world.find(differing())
        await world.reconcile(3)
        failed = world.rollout["candidate"]
        world.find()
        world.edit(with_fields(NEWER, rollout__compare={"latency": {"maxRatio": "9"}}))
        await world.reconcile(3)
        assert world.revision(CANDIDATE) == failed
        world.edit(NEWER)
        world.find(differing())
        await world.reconcile(3)
        assert not world.child(CANDIDATE)
        world.command(f"promote {failed}")
        await world.reconcile(3)

        assert world.rollout == {"phase": "Stable", "stable": failed}
        assert world.revision(DEPLOYMENT) == failed

    asyncio.run(scenario())


def test_a_candidate_is_kept_without_requests_if_the_spec_says_so() -> None:
    async def scenario() -> None:
        kept = {"rollout__onFailure": "Pause"}
        world = await comparing(with_fields(NEWER, **kept), with_fields(CANARY, **kept))
        world.find(differing())
        await world.reconcile(3)
        assert world.child(CANDIDATE)
        assert set(map(str, plans(world))) == {str(RolloutPlan())}
        world.command(f"abort {world.rollout['candidate']}")
        await world.reconcile(3)
        assert not world.child(CANDIDATE)

    asyncio.run(scenario())


def test_the_former_spec_removes_the_candidate_and_a_newer_one_replaces_it() -> None:
    async def scenario() -> None:
        world = await comparing()
        first, stable = world.revision(CANDIDATE), world.revision(DEPLOYMENT)
        world.edit(with_fields(NEWER, model__uri="file:///models/newest"))
        await world.reconcile()
        assert f"revision {first} is replaced" in world.judged["message"]
        await world.reconcile(3)
        assert uri_of(world.child(CANDIDATE)) == "file:///models/newest"
        assert world.rollout["step"] == 1
        world.edit(CANARY)
        await world.reconcile(3)

        assert not world.child(CANDIDATE)
        assert world.revision(DEPLOYMENT) == stable
        assert world.rollout == {"phase": "Stable", "stable": stable}

    asyncio.run(scenario())


def test_a_tolerance_of_an_unknown_output_is_reported_until_it_is_corrected() -> None:
    async def scenario() -> None:
        named = {**NEWER["rollout"], "compare": {"outputs": {"scor": {"agreement": "0.9"}}}}
        world = await comparing(with_fields(NEWER, rollout=named))
        world.find(agreeing(100))
        await world.reconcile(2)

        assert (world.judged["status"], world.judged["reason"]) == ("False", "OutputUnknown")
        assert "`scor`" in world.judged["message"]
        assert world.rollout["step"] == 1
        # A user must act, so the Event is a warning.
        assert [each["type"] for each in world.cluster.events if each["reason"] == "OutputUnknown"] == ["Warning"]
        world.edit(NEWER)
        await world.reconcile(2)
        assert (world.judged["reason"], world.rollout["step"]) == ("Comparing", 2)

    asyncio.run(scenario())


def test_another_signature_is_refused_with_the_difference_and_compared_once_it_is_allowed() -> None:
    async def scenario() -> None:
        world = await comparing()
        world.find(RolloutReport("", "", output_change="it has no `y`; also returns `z`"))
        await world.reconcile(2)
        assert (world.judged["status"], world.judged["reason"]) == ("False", "SignatureChanged")
        assert "it has no `y`; also returns `z`" in world.judged["message"]
        assert not world.child(CANDIDATE)

        world.find()
        world.edit(with_fields(NEWER, rollout={**NEWER["rollout"], "compare": {"allowSignatureChange": True}}))
        await world.reconcile(3)
        assert world.judged["reason"] == "Comparing"
        assert all(plan.allow_signature_change for plan in plans(world))
        world.find(RolloutReport("", "", shadowed_rows=100, output_change="it has no `y`; also returns `z`"))
        await world.reconcile()
        assert world.rollout["step"] == 2

    asyncio.run(scenario())


def test_the_start_times_of_both_revisions_are_reported() -> None:
    async def scenario() -> None:
        world = await comparing()
        started = {
            "stable": (world.cluster.pods[CAT], (9, 30)),
            "candidate": (world.cluster.candidate_pods[CAT], (12,)),
        }
        for pods, times_s in started.values():
            for pod, time_s in zip(pods, times_s, strict=False):
                made = world.now - datetime.timedelta(seconds=100)
                pod["metadata"]["creationTimestamp"] = timestamp(made)
                ready = timestamp(made + datetime.timedelta(seconds=time_s))
                pod["status"]["conditions"] = [{"type": "Ready", "status": "True", "lastTransitionTime": ready}]
        world.find(agreeing(10))
        await world.reconciler.reconcile(CAT)

        figures = world.rollout["figures"]
        assert (figures["startSeconds"], figures["stableStartSeconds"]) == (12, 9)
        assert "starts in 12 s (stable: 9 s)" in world.judged["message"]

    asyncio.run(scenario())


def test_commands_pause_and_resume_this_candidate_alone() -> None:
    async def scenario() -> None:
        world = await comparing()
        world.find(agreeing(100))
        world.command("pause 0000000000")
        await world.reconcile()
        assert world.rollout["step"] == 2
        assert "command pause is ignored: it is for revision 0000000000" in world.judged["message"]
        world.command(f"pause {world.rollout['candidate']}")
        world.find(agreeing(5000))
        await world.reconcile(2)
        assert (world.rollout["phase"], world.judged["reason"]) == ("Paused", "CandidatePaused")
        assert {(plan.candidate, plan.weight, plan.shadow) for plan in plans(world)} == {
            (world.rollout["candidate"], 0.0, 0.0)
        }
        assert world.child(CANDIDATE)
        world.command(None)
        await world.reconcile(1)
        assert world.rollout["phase"] == "Promoting"

    asyncio.run(scenario())


def test_an_aborted_candidate_stays_away_after_the_command_is_removed() -> None:
    async def scenario() -> None:
        world = await comparing()
        world.command(f"abort {world.rollout['candidate']}")
        await world.reconcile(2)
        world.command(None)
        await world.reconcile(2)

        assert not world.child(CANDIDATE)
        assert world.rollout["phase"] == "Failed"
        assert "a user aborted" in world.judged["message"]

    asyncio.run(scenario())


def test_an_aborted_candidate_that_is_promoted_is_judged_once_the_stable_pods_are_replaced() -> None:
    async def scenario() -> None:
        world = await comparing()
        newest = world.rollout["candidate"]
        world.command(f"abort {newest}")
        await world.reconcile(3)
        assert not world.child(CANDIDATE)
        world.command(f"promote {newest}")
        for _ in range(3):
            await world.reconciler.reconcile(CAT)
            world.child(DEPLOYMENT)["status"] |= {"replicas": 5, "updatedReplicas": 1}
            assert (world.judged["status"], world.rollout["phase"]) == ("False", "Promoting")
        assert world.revision(DEPLOYMENT) == newest
        await world.reconcile(2)

        assert (world.judged["status"], world.rollout["phase"]) == ("True", "Stable")

    asyncio.run(scenario())


def test_other_changes_of_pods_roll_as_ever_and_together_with_the_model_not_at_all() -> None:
    async def scenario() -> None:
        world = World()
        await world.reconcile(2)
        stable = world.revision(DEPLOYMENT)
        labelled = {"pod": {"nodeSelector": {"gpu": "a100"}}}
        world.edit(with_fields(CANARY, **labelled))
        await world.reconcile(2)
        assert world.child(DEPLOYMENT)["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "a100"}
        assert world.revision(DEPLOYMENT) == stable
        world.find()
        world.edit(NEWER)
        await world.reconcile(3)

        assert world.judged["reason"] == "ChangedTogether"
        assert "also pod" in world.judged["message"]
        assert world.child(DEPLOYMENT)["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "a100"}
        assert not world.child(CANDIDATE)

    asyncio.run(scenario())


def test_a_change_without_effect_on_pods_reaches_the_other_objects_during_a_comparison() -> None:
    async def scenario() -> None:
        world = await comparing()
        template = world.child(DEPLOYMENT)["spec"]["template"]
        world.edit(with_fields(NEWER, replicas=8, service={"annotations": {"a": "b"}}))
        await world.reconcile(2)

        assert world.child(DEPLOYMENT)["spec"]["template"] == template
        assert world.child(DEPLOYMENT)["spec"]["replicas"] == 8
        assert world.child(SERVICE)["metadata"]["annotations"]["a"] == "b"
        assert world.rollout["phase"] == "Comparing"

    asyncio.run(scenario())


def test_a_deleted_deployment_comes_back_with_the_revision_that_it_had() -> None:
    async def scenario() -> None:
        world = await comparing()
        del world.cluster.children[CAT, DEPLOYMENT]
        await world.reconcile(2)

        assert uri_of(world.child(DEPLOYMENT)) == "file:///models/cat"
        assert uri_of(world.child(CANDIDATE)) == "file:///models/newer"

    asyncio.run(scenario())


def test_a_deleted_candidate_comes_back() -> None:
    async def scenario() -> None:
        world = await comparing()
        for kind in (CANDIDATE, CANDIDATE_SERVICE, CANDIDATE_POLICY):
            del world.cluster.children[CAT, kind]
        await world.reconcile(2)

        assert all(world.child(kind) for kind in (CANDIDATE, CANDIDATE_SERVICE, CANDIDATE_POLICY))
        assert world.rollout["phase"] == "Comparing"

    asyncio.run(scenario())


def test_the_strategy_rolling_ends_a_comparison_and_leaves_nothing_of_it() -> None:
    async def scenario() -> None:
        world = await comparing()
        world.edit(with_fields(NEWER, rollout=None))
        await world.reconcile(4)

        assert uri_of(world.child(DEPLOYMENT)) == "file:///models/newer"
        assert not any(world.child(kind) for kind in (CANDIDATE, CANDIDATE_SERVICE, CANDIDATE_POLICY))
        assert not world.rollout
        assert not world.judged

    asyncio.run(scenario())


def test_without_pods_the_candidate_waits() -> None:
    async def scenario() -> None:
        world = await comparing()
        world.edit(with_fields(NEWER, replicas=0))
        await world.reconcile(2)

        assert world.child(CANDIDATE)["spec"]["replicas"] == 0
        assert (world.rollout["phase"], world.judged["reason"]) == ("Waiting", "CandidateWaiting")
        world.edit(NEWER)
        await world.reconcile(2)
        assert world.rollout["phase"] == "Comparing"

    asyncio.run(scenario())


def test_a_candidate_without_a_gpu_says_so_and_fails_after_the_deadline() -> None:
    async def scenario() -> None:
        world = World()
        await world.reconcile(2)
        world.edit(NEWER)
        world.find()
        world.starts = False
        await world.reconcile(2)
        (pod,) = world.cluster.candidate_pods[CAT]
        pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1}}
        text = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
        scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}
        unready = {"type": "Ready", "status": "False", "lastTransitionTime": world.now.isoformat()}
        pod["status"]["conditions"] = [scheduled, unready]
        await world.reconciler.reconcile(CAT)
        assert world.judged["reason"] == "CandidateStarting"
        assert "no node has a free nvidia.com/gpu" in world.judged["message"]
        world.now += datetime.timedelta(seconds=601)
        await world.reconciler.reconcile(CAT)

        assert world.judged["reason"] == "CandidateFailed"
        assert "no node has a free nvidia.com/gpu" in world.judged["message"]
        await world.reconciler.reconcile(CAT)
        assert not world.child(CANDIDATE)

    asyncio.run(scenario())


def test_proxies_that_compare_nothing_are_reported() -> None:
    async def scenario() -> None:
        world = World()
        await world.reconcile(2)
        world.edit(NEWER)
        world.find(unsupported=True)
        await world.reconcile(3)

        assert world.judged["reason"] == "CandidateUnsupported"
        assert not world.child(CANDIDATE)
        assert uri_of(world.child(DEPLOYMENT)) == "file:///models/cat"
        world.command(f"promote {world.rollout['candidate']}")
        await world.reconcile(3)
        assert uri_of(world.child(DEPLOYMENT)) == "file:///models/newer"

    asyncio.run(scenario())


def test_pods_of_an_older_release_are_kept_if_the_spec_changes() -> None:
    async def scenario() -> None:
        world = World()
        await world.reconcile(2)
        # As an older release wrote it: neither annotation nor variable.
        made = world.child(DEPLOYMENT)
        made["metadata"]["annotations"] = {SPEC_HASH_ANNOTATION: made["metadata"]["annotations"][SPEC_HASH_ANNOTATION]}
        world.edit(NEWER)
        world.find()
        await world.reconcile(2)
        assert world.judged["reason"] == "CandidateUnsupported"
        assert uri_of(world.child(DEPLOYMENT)) == "file:///models/cat"
        # The former spec makes the pods known again.
        world.edit(CANARY)
        await world.reconcile(2)
        world.edit(NEWER)
        await world.reconcile(3)
        assert world.rollout["phase"] == "Comparing"

    asyncio.run(scenario())


def images_of(deployment: Json) -> set[str]:
    return {each["image"] for each in deployment["spec"]["template"]["spec"]["containers"]}


def test_a_new_release_upgrades_the_stable_pods_by_their_own_spec_and_leaves_the_candidate_alone() -> None:
    async def scenario() -> None:
        world = await comparing()
        candidate = world.child(CANDIDATE)["spec"]["template"]
        newer: dict[str, Any] = {"proxy_image": "shoal/proxy:newer", "runtime_image": "shoal/runtime:newer"}
        # Outside the window, the pods wait for their upgrade.
        world.restart(upgrade_window="Mon 02:00-02:01 UTC", **newer)
        await world.reconcile(2)
        assert "shoal/proxy:newer" not in images_of(world.child(DEPLOYMENT))
        world.restart(**newer)
        await world.reconcile(4)

        assert images_of(world.child(DEPLOYMENT)) == set(newer.values())
        assert uri_of(world.child(DEPLOYMENT)) == "file:///models/cat"
        assert world.child(CANDIDATE)["spec"]["template"] == candidate
        assert world.rollout["phase"] == "Comparing"
        world.edit(with_fields(NEWER, replicas=20))
        await world.reconcile(2)
        assert world.child(CANDIDATE)["spec"]["replicas"] == 2

    asyncio.run(scenario())


def test_the_stable_pods_scale_and_queue_by_their_own_spec() -> None:
    async def scenario() -> None:
        scaled = with_fields(CANARY, scaling={"minReplicas": 1, "maxReplicas": 8}, batching__maxBatchSize=8)
        world = await comparing(with_fields(scaled, batching__maxBatchSize=64, scaling__maxReplicas=9), scaled)
        cached = world.records.get(CAT, CachedService).scaled

        assert cached is not None
        assert (cached.targets.full_batch_rows, cached.targets.maximum) == (8, 9)
        assert world.rollout["phase"] == "Comparing"

    asyncio.run(scenario())


def test_a_candidate_that_cannot_be_written_is_reported_and_leaves_the_service_ready() -> None:
    async def scenario() -> None:
        world = World()
        await world.reconcile(2)
        world.edit(NEWER)
        world.find()
        taken = {"metadata": {"name": "cat-candidate", "uid": "theirs"}}
        world.cluster.children[CAT, CANDIDATE] = taken
        await world.reconcile(2)

        assert world.judged["reason"] == "CandidateUnsupported"
        assert "Deployment cat-candidate exists" in world.judged["message"]
        ready = next(each for each in world.resource["status"]["conditions"] if each["type"] == "Ready")
        assert ready["status"] == "True"
        assert world.cluster.children[CAT, CANDIDATE] == taken

    asyncio.run(scenario())


def test_a_spec_that_cannot_be_read_leaves_the_rollout_as_it_is() -> None:
    async def scenario() -> None:
        world = await comparing()
        before = world.rollout
        world.edit(with_fields(NEWER, batching={"maxBatchSize": "many"}))
        await world.reconcile(2)
        assert world.rollout == before
        # Nothing is known about a candidate of the newest spec.
        assert (world.judged["status"], world.judged["reason"]) == ("Unknown", "InvalidSpec")
        assert world.child(CANDIDATE)
        world.edit(NEWER)
        await world.reconcile(2)
        assert world.rollout == before

    asyncio.run(scenario())


def test_the_revision_before_a_promotion_comes_back_at_once() -> None:
    async def scenario() -> None:
        world = await comparing()
        stable, newest = world.revision(DEPLOYMENT), world.revision(CANDIDATE)
        world.command(f"promote {newest}")
        await world.reconciler.reconcile(CAT)
        assert world.rollout["phase"] == "Promoting"
        assert world.revision(DEPLOYMENT) == newest
        world.edit(CANARY)
        await world.reconciler.reconcile(CAT)
        assert world.revision(DEPLOYMENT) == stable
        await world.reconcile(4)
        assert world.rollout == {"phase": "Stable", "stable": stable}
        assert not world.child(CANDIDATE)

    asyncio.run(scenario())


def test_a_rolling_service_knows_nothing_of_candidates() -> None:
    async def scenario() -> None:
        world = World(MINIMAL)
        await world.reconcile(2)
        world.edit(with_fields(MINIMAL, model__uri="file:///models/newer"))
        await world.reconcile(2)

        assert uri_of(world.child(DEPLOYMENT)) == "file:///models/newer"
        assert not world.rollout
        assert not world.judged

    asyncio.run(scenario())
