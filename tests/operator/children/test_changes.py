"""Changes: missing children are created, wrong ones corrected, foreign objects left alone."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_operator.children.changes import Apply, Conflict, Delete, plan_changes
from shoal_operator.manifests.desired import (
    CANDIDATE,
    DEPLOYMENT,
    INGRESS,
    PEERS,
    SERVICE,
    SERVICE_ACCOUNT,
    Child,
    desired_objects,
)
from shoal_operator.manifests.labels import MANAGED_BY, MANAGED_BY_LABEL, SERVICE_LABEL
from shoal_schema.fields.declaring import Json
from tests.operator.samples import EVERYTHING, MINIMAL, UID, graph, graph_target, target, with_fields

OURS = {MANAGED_BY_LABEL: MANAGED_BY, SERVICE_LABEL: "cat"}
ROUTED = with_fields(MINIMAL, route={"ingress": {"host": "cat.example.com"}})


def stored(spec: Json) -> dict[Child, Json]:
    """Return the children as a server would hold them."""
    children = copy.deepcopy(desired_objects(target(spec)))
    for index, body in enumerate(children.values()):
        body["metadata"] |= {"uid": f"uid-{index}", "resourceVersion": "7"}
        body["status"] = {}
    return children


@pytest.mark.parametrize("spec", [MINIMAL, EVERYTHING, ROUTED], ids=["minimal", "everything", "routed"])
def test_an_empty_cluster_gets_every_object_and_then_nothing(spec: Json) -> None:
    plan = plan_changes(target(spec), {})

    assert [action.kind for action in plan.actions] == list(desired_objects(target(spec)))
    assert all(isinstance(action, Apply) and action.uid is None for action in plan.actions)
    assert plan_changes(target(spec), stored(spec)).actions == ()


def test_a_deleted_child_comes_back() -> None:
    children = stored(MINIMAL)
    del children[SERVICE]

    assert [action.kind for action in plan_changes(target(MINIMAL), children).actions] == [SERVICE]


def test_a_changed_child_is_put_right_and_only_if_it_is_still_the_same_object() -> None:
    children = stored(MINIMAL)
    children[SERVICE]["spec"]["ports"][0]["port"] = 81
    (action,) = plan_changes(target(MINIMAL), children).actions

    assert isinstance(action, Apply)
    assert action.uid == children[SERVICE]["metadata"]["uid"]


def test_a_new_spec_touches_only_what_it_changes() -> None:
    plan = plan_changes(target(with_fields(MINIMAL, batching__maxBatchSize=8)), stored(MINIMAL))

    assert [action.kind for action in plan.actions] == [DEPLOYMENT]


def test_a_route_that_is_no_longer_asked_for_is_deleted_once() -> None:
    children = stored(ROUTED)
    uid = children[INGRESS]["metadata"]["uid"]

    assert plan_changes(target(MINIMAL), children).actions == (Delete(INGRESS, "cat", uid),)
    children[INGRESS]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert plan_changes(target(MINIMAL), children).actions == ()


def test_our_account_goes_when_a_user_names_one() -> None:
    plan = plan_changes(target(with_fields(MINIMAL, pod={"serviceAccountName": "mine"})), stored(MINIMAL))

    assert {(type(action), action.kind) for action in plan.actions} == {
        (Delete, SERVICE_ACCOUNT),
        (Apply, DEPLOYMENT),
    }


@pytest.mark.parametrize(
    ("owners", "labels", "stale"),
    [
        ([], {}, False),
        ([], {**OURS, SERVICE_LABEL: "dog"}, False),
        ([], {**OURS, MANAGED_BY_LABEL: "Helm"}, False),
        ([{"kind": "Deployment", "name": "cat", "uid": "x", "controller": True}], OURS, False),
        ([{"kind": "InferenceService", "name": "cat", "uid": "old", "controller": True}], OURS, True),
    ],
)
def test_an_object_that_is_not_ours_is_reported_and_never_touched(
    owners: list[Json], labels: Json, stale: bool
) -> None:
    children = stored(MINIMAL)
    children[SERVICE]["metadata"] |= {"ownerReferences": owners, "labels": labels}
    children[SERVICE]["spec"] = {}
    plan = plan_changes(target(MINIMAL), children)

    assert plan.actions == ()
    assert plan.conflicts == (Conflict(SERVICE, "cat", stale=stale),)


@pytest.mark.parametrize("kind", list(desired_objects(target(EVERYTHING))), ids=str)
@pytest.mark.parametrize("references", [[], [{"uid": "another"}], [{"uid": UID}]], ids=["none", "another", "own"])
def test_own_object_without_a_controller_is_adopted(kind: Child, references: list[Json]) -> None:
    children = stored(EVERYTHING)
    children[kind]["metadata"]["ownerReferences"] = references
    plan = plan_changes(target(EVERYTHING), children)

    (action,) = plan.actions
    assert isinstance(action, Apply)
    assert (action.kind, action.uid) == (kind, children[kind]["metadata"]["uid"])
    assert action.body["metadata"]["ownerReferences"] == [target(EVERYTHING).owner_reference]
    assert plan.conflicts == ()


def test_orphan_that_is_being_deleted_is_not_adopted() -> None:
    children = stored(MINIMAL)
    del children[SERVICE]["metadata"]["ownerReferences"]
    children[SERVICE]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    plan = plan_changes(target(MINIMAL), children)

    assert (plan.actions, plan.conflicts) == ((), (Conflict(SERVICE, "cat", stale=False),))


def test_orphaned_route_that_the_spec_does_not_declare_is_kept() -> None:
    children = stored(ROUTED)
    del children[INGRESS]["metadata"]["ownerReferences"]
    plan = plan_changes(target(MINIMAL), children)

    assert (plan.actions, plan.conflicts) == ((), ())


@pytest.mark.parametrize(("kind", "stale"), [("InferenceService", False), ("InferenceGraph", True)])
def test_only_what_was_a_graphs_will_go_to_make_room_for_a_graph(kind: str, stale: bool) -> None:
    asked = graph_target(graph())
    children = {SERVICE: desired_objects(asked)[SERVICE]}
    owner = {"kind": kind, "name": asked.name, "uid": "old", "controller": True}
    children[SERVICE]["metadata"]["ownerReferences"] = [owner]

    assert plan_changes(asked, children).conflicts == (Conflict(SERVICE, asked.name, stale=stale),)


def test_a_foreign_object_of_a_kind_that_we_do_not_want_is_no_conflict() -> None:
    ingress: Json = {"metadata": {"name": "cat", "uid": "x"}}

    plan = plan_changes(target(MINIMAL), {**stored(MINIMAL), INGRESS: ingress})

    assert (plan.actions, plan.conflicts) == ((), ())


@settings(deadline=None)  # on a busy machine one example takes longer than the usual
@given(st.data())
def test_from_any_mangled_child_the_plan_leads_back_and_then_is_empty(data: st.DataObject) -> None:
    children = stored(EVERYTHING)
    kind = data.draw(st.sampled_from(sorted(children, key=lambda kind: kind.kind)))
    _mangle(children[kind], data)

    plan = plan_changes(target(EVERYTHING), children)
    for action in plan.actions:
        assert isinstance(action, Apply)
        children[action.kind] = {**action.body, "metadata": {**action.body["metadata"], "uid": "new"}}

    assert plan_changes(target(EVERYTHING), children).actions == ()


def _mangle(body: Any, data: st.DataObject) -> None:
    """Change or remove one field somewhere below the object's content."""
    holder = body
    key = data.draw(st.sampled_from(sorted(set(holder) - {"metadata", "apiVersion", "kind", "status"}) or ["kind"]))
    while isinstance(holder[key], dict) and holder[key] and data.draw(st.booleans()):
        holder = holder[key]
        key = data.draw(st.sampled_from(sorted(holder)))
    if data.draw(st.booleans()):
        del holder[key]
    else:
        holder[key] = data.draw(st.sampled_from(["other", 7, None]))


def owned_by(name: str, uid: str = "another") -> Json:
    """Return a headless Service of the service of this name, or of one that is called as it."""
    owner = {"apiVersion": "serving.shoal.dev/v1alpha1", "kind": "InferenceService", "name": name, "uid": uid}
    return {"metadata": {"name": "cat-peers", "uid": "theirs", "ownerReferences": [{**owner, "controller": True}]}}


@pytest.mark.parametrize(
    "theirs",
    [{"metadata": {"name": "cat-peers", "uid": "theirs"}}, owned_by("cat-peers")],
    ids=["user", "namesake"],
)
def test_pods_get_no_peers_name_if_another_owner_has_it(theirs: Json) -> None:
    children = {**stored(MINIMAL), PEERS: theirs}
    plan = plan_changes(target(MINIMAL), children)

    (action,) = plan.actions
    assert isinstance(action, Apply)
    assert action.kind == DEPLOYMENT
    assert "SHOAL_PROXY_PEERS" not in str(action.body)
    assert plan.conflicts == (Conflict(PEERS, "cat-peers", stale=False),)


def test_a_headless_service_that_is_about_to_go_with_a_namesake_of_before_is_waited_for() -> None:
    plan = plan_changes(target(MINIMAL), {**stored(MINIMAL), PEERS: owned_by("cat")})

    assert (plan.actions, plan.conflicts) == ((), (Conflict(PEERS, "cat-peers", stale=True),))


def test_a_service_whose_name_is_anothers_for_a_candidate_takes_it() -> None:
    owner = owned_by("cat")
    owner["metadata"]["name"] = "cat-candidate"
    children = stored(MINIMAL) | {SERVICE: owner, DEPLOYMENT: owner}
    plan = plan_changes(target(MINIMAL, name="cat-candidate"), children)

    assert plan.conflicts == ()
    for kind in (SERVICE, DEPLOYMENT):
        taken, made = (action for action in plan.actions if action.kind == kind)
        assert taken == Delete(kind, "cat-candidate", "theirs")
        assert isinstance(made, Apply)
        assert made.uid is None


def test_a_candidate_is_never_written_where_its_name_has_another_owner() -> None:
    judged = target(with_fields(MINIMAL, rollout={"strategy": "Canary"}))
    judged = replace(judged, candidate=replace(judged, candidate_replicas=1))
    owner = owned_by("cat-candidate")
    owner["metadata"]["name"] = "cat-candidate"
    plan = plan_changes(judged, stored(MINIMAL) | {CANDIDATE: owner})

    assert CANDIDATE not in [action.kind for action in plan.actions]
    assert Conflict(CANDIDATE, "cat-candidate", stale=False) in plan.conflicts


def test_a_service_whose_name_is_anothers_for_peers_takes_it() -> None:
    children = stored(MINIMAL) | {SERVICE: owned_by("cat")}
    plan = plan_changes(target(MINIMAL, name="cat-peers"), children)
    taken, made = (action for action in plan.actions if action.kind == SERVICE)

    assert plan.conflicts == ()
    assert taken == Delete(SERVICE, "cat-peers", "theirs")
    assert isinstance(made, Apply)
    assert made.uid is None
