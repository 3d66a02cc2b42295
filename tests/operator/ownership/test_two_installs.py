"""Two installs of the operator watch one namespace: one keeps a service, the other waits until it is gone."""

import asyncio
import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from shoal_operator.children.conditions import find
from shoal_operator.children.observation import Key
from shoal_operator.errors import ApiError
from shoal_operator.loop.records import Records
from shoal_operator.loop.workqueue import WAIT_S, Outcome
from shoal_operator.manifests.desired import DEPLOYMENT, SERVICE
from shoal_operator.ownership.conflicts import UNKNOWN_WRITER, WriteLimits
from shoal_operator.ownership.installs import CLAIM_MEMORY_S, SETTLE_S, Ownership, OwnershipStep, decide
from shoal_operator.reconciliation.reconciler import Reconciler
from shoal_operator.scaling.service_cache import CachedService
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import ConditionType
from tests.operator.fakes import FakeCluster, reconciler_of
from tests.operator.samples import DEFAULTS, MINIMAL, service, with_fields

CAT = Key("default", "cat")
WRITES, WINDOW_S, _, MAX_PAUSE_S = UNKNOWN_WRITER
SPEC = with_fields(MINIMAL, scaling={"maxReplicas": 3})


class Installs:
    """One cluster, a clock, and operators that would each make other pods."""

    def __init__(self) -> None:
        self.cluster, self.now_s = FakeCluster(), 0.0
        self.cluster.services[CAT] = service(SPEC)
        self.records: dict[str, Records] = {}
        self.reconcilers: dict[str, Reconciler] = {}

    def start(self, name: str) -> None:
        defaults = structs.replace(DEFAULTS, runtime_image=f"{name}/runtime", namespace=name)
        records = self.records[name] = Records()
        self.reconcilers[name] = reconciler_of(
            self.cluster, defaults=defaults, utc_now=self.utc_now, records=records, clock=lambda: self.now_s
        )

    def stop(self, name: str) -> None:
        del self.reconcilers[name]

    def utc_now(self) -> datetime.datetime:
        return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    def reconcile(self, name: str) -> Outcome:
        return asyncio.run(self.reconcilers[name].reconcile(CAT))

    def run(self, seconds: float, step_s: float = 15.0) -> None:
        """Let every operator look at the service, again and again."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            for name in self.reconcilers:
                self.reconcile(name)
            self.now_s += step_s

    def runs(self) -> str:
        """Return whose pods the Deployment makes."""
        containers = self.cluster.children[CAT, DEPLOYMENT]["spec"]["template"]["spec"]["containers"]
        return str(containers[0]["image"]).partition("/")[0]

    def writes(self, *verbs: str) -> int:
        return sum(verb in verbs for verb, _ in self.cluster.writes)

    def sole(self) -> Json | None:
        return find(self.cluster.services[CAT]["status"]["conditions"], ConditionType.SOLE_OPERATOR)


def both() -> Installs:
    installs = Installs()
    installs.start("one")
    installs.reconcile("one")
    installs.start("two")
    installs.cluster.writes.clear()
    return installs


def test_second_install_writes_neither_children_nor_status_nor_scale() -> None:
    installs = both()
    installs.run(3600)

    assert installs.runs() == "one"
    assert installs.writes("apply", "delete") == 0
    assert installs.writes("status") == 1  # the owner reports the other install
    assert installs.writes("annotate") <= 2 * (3600 / MAX_PAUSE_S + 4)
    assert installs.records["two"].find(CAT, CachedService) is None
    assert installs.records["one"].find(CAT, CachedService) is not None


def test_both_say_so() -> None:
    installs = both()
    installs.run(600)

    sole = installs.sole()
    assert sole is not None
    assert (sole["status"], sole["reason"]) == ("False", "AnotherOperator")
    assert "namespace two" in sole["message"]
    reported = [event["message"] for event in installs.cluster.events if event["reason"] == "AnotherOperator"]
    assert len(reported) == 2
    assert any("the one in two does not write to it" in text for text in reported)


def test_when_the_keeper_is_gone_the_other_takes_over_once() -> None:
    installs = both()
    installs.run(1800)
    installs.stop("one")
    installs.cluster.writes.clear()
    installs.run(MAX_PAUSE_S + SETTLE_S + 30)

    assert installs.runs() == "two"
    assert installs.writes("apply") == 2  # the Service, which names the keeper, and the Deployment
    installs.cluster.writes.clear()
    installs.run(600)
    assert installs.cluster.writes == []


def test_when_the_other_is_gone_the_condition_goes_too() -> None:
    installs = both()
    installs.run(600)
    installs.stop("two")
    installs.run(CLAIM_MEMORY_S + 30)

    assert installs.sole() is None
    assert installs.runs() == "one"


def test_a_keeper_that_comes_back_leaves_it_to_the_new_one() -> None:
    installs = both()
    installs.stop("one")
    installs.run(300)
    assert installs.runs() == "two"
    installs.start("one")
    installs.cluster.writes.clear()
    installs.run(3600)

    assert installs.runs() == "two"
    assert installs.writes("apply") == 0


def test_a_restart_of_the_keeper_keeps_the_service() -> None:
    installs = both()
    for _ in range(20):
        installs.run(30)
        installs.start("one")

    assert installs.runs() == "one"
    assert installs.writes("apply") == 0


def test_a_service_that_an_older_release_made_is_taken_over_at_once() -> None:
    installs = both()
    del installs.cluster.children[CAT, SERVICE]["metadata"]["annotations"]["serving.shoal.dev/operator"]
    installs.stop("one")
    installs.reconcile("two")

    assert installs.runs() == "two"


def test_orphaned_service_is_adopted_by_its_keeper_alone() -> None:
    installs = both()
    for kind in (SERVICE, DEPLOYMENT):
        del installs.cluster.children[CAT, kind]["metadata"]["ownerReferences"]
    installs.reconcile("two")
    assert installs.writes("apply") == 0
    installs.run(600)

    assert installs.runs() == "one"
    assert installs.writes("apply") == 2
    assert all(installs.cluster.children[CAT, kind]["metadata"]["ownerReferences"] for kind in (SERVICE, DEPLOYMENT))


def test_three_installs_settle_on_one() -> None:
    installs = both()
    installs.start("three")
    installs.run(3600)

    assert installs.runs() == "one"
    assert installs.writes("apply") == 0


def undo(installs: Installs) -> None:
    """Write as an operator does that names no keeper, and whose pods are others."""
    live, named = (installs.cluster.children[CAT, kind] for kind in (DEPLOYMENT, SERVICE))
    named["metadata"]["annotations"].pop("serving.shoal.dev/operator", None)
    named["metadata"]["managedFields"] = [{"manager": "shoal-operator"}, {"manager": "old", "time": "2026"}]
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "old/runtime"
    installs.cluster.services[CAT]["status"] = {"conditions": []}


def test_an_operator_that_names_no_keeper_is_not_fought() -> None:
    installs = both()
    installs.stop("two")
    for _ in range(100):
        undo(installs)
        assert installs.runs() == "old"
        installs.reconcile("one")
        installs.now_s += 0.3
    assert installs.writes("apply") == 2 * (WRITES - 1)  # of Service and Deployment; one made each
    assert installs.writes("status", "event") <= 20
    assert ready(installs)["reason"] == "AnotherOperator"
    assert "'old'" in ready(installs)["message"]

    installs.cluster.writes.clear()
    for _ in range(360):
        undo(installs)
        installs.reconcile("one")
        installs.now_s += 10.0
    assert installs.writes("apply") <= 2 * (3600 / MAX_PAUSE_S + 4)


def ready(installs: Installs) -> Json:
    reported = [event for event in installs.cluster.events if event["type"] == "Warning"]
    conditions = installs.cluster.services[CAT]["status"]["conditions"]
    return find(conditions, ConditionType.READY) or {
        "reason": reported[-1]["reason"],
        "message": reported[-1]["message"],
    }


def test_when_it_is_gone_the_service_is_put_right() -> None:
    installs = both()
    installs.stop("two")
    for _ in range(100):
        undo(installs)
        installs.reconcile("one")
        installs.now_s += 0.5
    assert installs.runs() == "old"
    installs.run(MAX_PAUSE_S + 10)

    assert installs.runs() == "one"
    assert ready(installs)["reason"] == "RollingOut"


def test_a_write_that_the_api_server_refuses_is_not_one_that_is_undone() -> None:
    refused = ApiError(422, "no")
    installs = Installs()
    installs.start("one")
    installs.reconcile("one")
    installs.cluster.children[CAT, DEPLOYMENT]["spec"]["replicas"] = 7
    installs.cluster._refuse = lambda verb, what: refused if what == "Deployment" else None
    installs.run(300)

    assert ready(installs)["reason"] == "InvalidSpec"


@given(st.lists(st.tuples(st.floats(0, 400), st.sampled_from("ab")), max_size=60))
def test_one_text_is_never_written_more_than_a_few_times_a_minute(steps: list[tuple[float, str]]) -> None:
    conflicts, now_s, written = WriteLimits(), 0.0, list[tuple[float, str]]()
    for later_s, text in steps:
        now_s += later_s
        if conflicts.may_write("Deployment", text, now_s):
            conflicts.record_write("Deployment", text, now_s)
            if written and written[-1][1] != text:
                written.clear()
            written.append((now_s, text))
        lately = [when for when, _ in written if now_s - when < WINDOW_S]
        assert len(lately) <= WRITES


names = st.sampled_from(["", "me", "other", "third"])


@given(st.lists(st.tuples(names, names, st.floats(0, 100)), max_size=20))
def test_what_is_anothers_is_kept_only_after_a_claim_that_stood(seen: list[tuple[str, str, float]]) -> None:
    known, now_s, stood_s = Ownership(), 0.0, None
    for keeper, claim, later_s in seen:
        now_s += later_s
        step, known = decide("me", keeper, claim, known, now_s)
        others = keeper not in ("", "me")
        if step is OwnershipStep.KEEP and others:
            assert claim == "me"
            assert stood_s is not None
            assert now_s - stood_s >= SETTLE_S
        if step in (OwnershipStep.CLAIM, OwnershipStep.LEAVE):
            assert others
        stands = others and (claim == "me" or step is OwnershipStep.CLAIM)
        stood_s = (now_s if stood_s is None else stood_s) if stands else None


def test_endless_claims_get_five_responses_per_minute() -> None:
    installs = both()
    installs.stop("two")
    for number in range(120):
        annotations = installs.cluster.children[CAT, SERVICE]["metadata"]["annotations"]
        annotations["serving.shoal.dev/claimed-by"] = f"stranger-{number}"
        installs.reconcile("one")
        installs.now_s += 0.5
    assert installs.writes("annotate") <= WRITES
    assert installs.writes("status") <= WRITES


def test_one_claim_among_many_gets_a_response_before_it_settles() -> None:
    installs = both()
    annotations = installs.cluster.children[CAT, SERVICE]["metadata"]["annotations"]
    annotations["serving.shoal.dev/claimed-by"] = "stranger"
    installs.reconcile("one")
    installs.reconcile("two")  # lays its claim while the keeper has just answered one
    waited_s = 0.0
    while installs.reconcile("one") is Outcome.WAITING:
        installs.now_s += WAIT_S
        waited_s += WAIT_S

    assert waited_s > 0
    assert waited_s < SETTLE_S / 2
    assert installs.sole()["message"].startswith("the operator in namespace two")  # type: ignore[index]
    assert "serving.shoal.dev/claimed-by" not in installs.cluster.children[CAT, SERVICE]["metadata"]["annotations"]


@pytest.mark.parametrize("claim", ["", "me", "other"])
def test_a_claim_to_what_is_ours_is_taken_away(claim: str) -> None:
    step, _ = decide("me", "me", claim, Ownership(), 0.0)

    assert step is (OwnershipStep.REJECT if claim else OwnershipStep.KEEP)
