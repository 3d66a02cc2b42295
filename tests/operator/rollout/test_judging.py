"""Plans and reports of rollouts, over real connections to pods of every kind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
from aiohttp import web

from shoal_operator.children.observation import Key
from shoal_operator.cluster.api_time import age_s, timestamp
from shoal_operator.loop.records import Records
from shoal_operator.manifests.desired import CANDIDATE, DEPLOYMENT
from shoal_operator.rollout.judging import JudgedRollout, Judging
from shoal_operator.rollout.plans import Assignment, RolloutPod, make_plan
from shoal_operator.rollout.progress import RolloutPhase, RolloutProgress
from shoal_operator.rollout.situation import ObservedCandidate, Situation
from shoal_operator.rollout.steps import decide
from shoal_operator.scaling.service_cache import Replica
from shoal_schema.interfaces.headers import INSTANCE
from shoal_schema.interfaces.rollout import MAX_BYTES, PATH, BatchTimes, RolloutPlan, RolloutReport
from shoal_schema.resource.rollout import RolloutSpec, RolloutStrategy
from tests.operator.fakes import clock, new_year
from tests.operator.rollout.rollouts import NEWER, World

CAT, DOG = Key("default", "cat"), Key("default", "dog")
CANARY = RolloutSpec(strategy=RolloutStrategy.CANARY)
Handler = Callable[[web.Request, RolloutPlan], Awaitable[web.StreamResponse]]


async def report_rows(request: web.Request, plan: RolloutPlan) -> web.StreamResponse:
    """Answer as a proxy does whose candidate ran ten rows."""
    rows = 10 if plan.candidate else 0
    return web.json_response(body=msgspec.json.encode(RolloutReport("a", plan.candidate, shadowed_rows=rows)))


async def hang(request: web.Request, plan: RolloutPlan) -> web.StreamResponse:
    await asyncio.Event().wait()
    return web.Response()


async def flood(request: web.Request, plan: RolloutPlan) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * MAX_BYTES)


def answer(**given: Any) -> Handler:
    async def handler(request: web.Request, plan: RolloutPlan) -> web.StreamResponse:
        return web.Response(**given)

    return handler


class Pods:
    """Pods at one address, which their uids distinguish, and the loop that sends them plans."""

    judging: Judging

    def __init__(self) -> None:
        self.records, self.marked = Records(), asyncio.Queue[Key]()
        self.seen: list[Key] = []
        self.behave: dict[str, Handler] = {}
        self.plans: dict[str, RolloutPlan] = {}

    async def serve(self, request: web.Request) -> web.StreamResponse:
        uid = request.headers[INSTANCE]
        assert request.headers["x-shoal-admin"]
        plan = msgspec.json.decode(await request.read(), type=RolloutPlan)
        self.plans[uid] = plan
        return await self.behave.get(uid, report_rows)(request, plan)

    def assign(self, key: Key, *uids: str, revision: str = "b", weight: int = 0) -> None:
        """Give pods a plan, as a reconciliation does."""
        progress = RolloutProgress(RolloutPhase.COMPARING, "a", "b", 1, 4, "2026-01-01T00:00:00Z")
        situation = Situation(
            rollout=CANARY,
            newest="b",
            stable="a",
            progress=progress,
            candidate=ObservedCandidate(revision="b", ready=1),
            responds=False,
            quiet=False,
            now=timestamp(new_year()),
            age_s=partial(age_s, new_year()),
        )
        plan = make_plan(CANARY, revision, weight, 10) if revision else RolloutPlan()
        pods = tuple(RolloutPod(Replica(uid, "127.0.0.1", uid), plan) for uid in uids)
        self.judging.follow(key, Assignment(pods, revision, situation, decide(situation)))

    async def until(self, key: Key) -> None:
        """Wait until a service is to be reconciled."""
        async with asyncio.timeout(20):
            while key not in self.seen:
                self.seen.append(await self.marked.get())
        self.seen.remove(key)


@asynccontextmanager
async def pods() -> AsyncIterator[Pods]:
    world = Pods()
    app = web.Application()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    app.router.add_put(PATH, world.serve)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    world.judging = Judging(world.records, lambda key, delay_s: world.marked.put_nowait(key), new_year, clock, port)
    task = asyncio.create_task(world.judging.run())
    await asyncio.sleep(0)
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await runner.cleanup()


def test_reports_of_all_pods_are_added_and_cause_a_reconciliation() -> None:
    async def scenario() -> None:
        async with pods() as world:
            world.assign(CAT, "one", "two")
            await world.until(CAT)
            found = world.judging.found(CAT, "b", frozenset({"one", "two"}))

            assert found.responds
            assert not found.unsupported
            assert found.reports is not None
            assert found.reports.stable.shadowed_rows == 20
            assert world.plans["one"] == RolloutPlan("b", shadow=0.1)
            # Rows of a pod that is gone stay; another candidate starts from 0.
            world.assign(CAT, "two")
            found = world.judging.found(CAT, "b", frozenset({"two"}))
            assert found.reports is not None
            assert found.reports.stable.shadowed_rows == 20
            assert world.judging.found(CAT, "c", frozenset({"two"})).reports is None
            world.assign(CAT, "two", revision="c")
            assert world.judging.found(CAT, "c", frozenset({"two"})).reports is None

    asyncio.run(scenario())


def test_a_rollout_is_quiet_once_every_pod_has_accepted_its_end() -> None:
    async def scenario() -> None:
        async with pods() as world:
            world.assign(CAT, "one", "two")
            await world.until(CAT)
            assert not world.judging.found(CAT, "b", frozenset({"one"})).quiet
            world.assign(CAT, "one", "two", revision="")
            assert not world.judging.found(CAT, "b", frozenset({"one"})).quiet
            await world.until(CAT)
            assert world.judging.found(CAT, "b", frozenset({"one"})).quiet
            assert world.plans == dict.fromkeys(("one", "two"), RolloutPlan())
            world.judging.follow(CAT, None)
            assert world.judging.found(CAT, "b", frozenset({"one"})).quiet

    asyncio.run(scenario())


TIMES = RolloutReport("a", "b", times=(BatchTimes(1, 10, 900.0, 1.0),))
HOSTILE: dict[str, Handler] = {
    "hang": hang,
    "flood": flood,
    "garbage": answer(body=b"\x00\xff", content_type="application/json"),
    "nothing": answer(body=b""),
    "error": answer(status=500),
    "redirect": answer(status=307, headers={"location": "http://127.0.0.1:1/"}),
    "other candidate": answer(body=msgspec.json.encode(RolloutReport("a", "c", shadowed_rows=5))),
    "other pod": answer(body=msgspec.json.encode(RolloutReport("a", "b")), headers={INSTANCE: "else"}),
    "rejection by another pod": answer(status=409, headers={INSTANCE: "else"}),
    "negative": answer(body=b'{"revision": "a", "candidate": "b", "shadowed_rows": -1}'),
    "impossible": answer(body=msgspec.json.encode(TIMES)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_pod_gives_no_report_and_delays_no_other_service(kind: str) -> None:
    async def scenario() -> None:
        async with pods() as world:
            world.behave["bad"] = HOSTILE[kind]
            world.assign(CAT, "bad", "another")
            world.assign(DOG, "good")
            await world.until(DOG)
            assert world.judging.found(DOG, "b", frozenset({"good"})).responds
            # The other pods of its service are read too.
            await world.until(CAT)

            found = world.judging.found(CAT, "b", frozenset({"bad", "another"}))
            assert not found.unsupported
            assert found.reports is not None
            assert found.reports.stable.shadowed_rows == 10
            assert not found.reports.stable.times

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [404, 409])
def test_a_proxy_of_an_older_release_is_remembered(status: int) -> None:
    async def scenario() -> None:
        async with pods() as world:
            world.behave["old"] = answer(status=status)
            world.assign(CAT, "old", "new")
            await world.until(CAT)
            world.judging.follow(CAT, None)

            assert world.judging.found(CAT, "b", frozenset({"old", "new"})).unsupported
            assert not world.judging.found(CAT, "b", frozenset({"new"})).unsupported

    asyncio.run(scenario())


async def settled(world: World, pods: Pods) -> None:
    """Reconcile whenever the loop says so, until the service has no plans."""
    async with asyncio.timeout(20):
        await world.reconcile(2)
        while (rollout := pods.records.find(CAT, JudgedRollout)) is None or rollout.assignment is not None:
            await pods.marked.get()
            await world.reconcile(2)


def test_a_rollout_goes_from_reports_to_its_end_and_then_leaves_the_proxies_alone() -> None:
    async def scenario() -> None:
        async with pods() as proxies:
            world = World()
            world.judging = proxies.judging
            world.restart(proxies.records)
            await settled(world, proxies)
            stable = world.revision(DEPLOYMENT)
            assert set(map(str, proxies.plans.values())) == {str(RolloutPlan())}
            # Nothing is left to do: no further reconciliation is asked for.
            before = world.cluster.writes.copy()
            await world.reconcile(3)
            assert proxies.records.get(CAT, JudgedRollout).assignment is None
            assert world.cluster.writes == before

            async def differ(request: web.Request, plan: RolloutPlan) -> web.StreamResponse:
                change = "x: FP32 became INT64" if plan.candidate and world.child(CANDIDATE) else ""
                return web.json_response(
                    body=msgspec.json.encode(RolloutReport("a", plan.candidate, input_change=change))
                )

            proxies.behave = {f"{DEPLOYMENT.label}-{at}": differ for at in range(4)}
            world.edit(NEWER)
            await settled(world, proxies)

            assert world.rollout["phase"] == "Failed"
            assert world.judged["reason"] == "SignatureChanged"
            assert world.revision(DEPLOYMENT) == stable
            assert not world.child(CANDIDATE)
            assert all(proxies.plans[uid] == RolloutPlan() for uid in proxies.behave)

    asyncio.run(scenario())


def test_proxies_that_compare_nothing_end_a_rollout_without_a_candidate() -> None:
    async def scenario() -> None:
        async with pods() as proxies:
            world = World()
            world.judging = proxies.judging
            world.restart(proxies.records)
            await settled(world, proxies)
            proxies.behave = {f"{DEPLOYMENT.label}-{at}": answer(status=409) for at in range(4)}
            world.edit(NEWER)
            await settled(world, proxies)

            assert world.judged["reason"] == "CandidateUnsupported"
            assert not world.child(CANDIDATE)
            await world.reconcile(3)
            assert world.judged["reason"] == "CandidateUnsupported"
            assert proxies.records.get(CAT, JudgedRollout).assignment is None

    asyncio.run(scenario())


def test_a_service_without_a_rollout_has_no_state() -> None:
    records = Records()
    judging = Judging(records, lambda key, delay_s: None, new_year, lambda: 0.0)
    judging.follow(CAT, None)

    assert records.find(CAT, JudgedRollout) is None
    assert not judging.found(CAT, "b", frozenset()).quiet
