"""The requests that reach the API server, byte for byte where it matters."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import pytest

from shoal_operator.children.changes import plan_changes
from shoal_operator.children.observation import Key
from shoal_operator.cluster.objects import KubernetesCluster, object_path
from shoal_operator.errors import ApiError, NotLeadingError
from shoal_operator.manifests.desired import DEPLOYMENT, ENDPOINT_SLICE, SERVICE, desired_objects
from shoal_operator.manifests.target import Hosting
from shoal_schema.fields.declaring import Json
from tests.operator.samples import MINIMAL, service, target, with_fields
from tests.operator.servers import Answer, Asked, api_server, serving

CAT = Key("default", "cat")


def calls(
    use: Callable[[KubernetesCluster], Awaitable[object]], answer: Answer, *, may_write: bool = True
) -> tuple[object, list[Asked]]:
    """Run ``use`` against a server; return its result and what the server was asked."""

    async def main() -> tuple[object, list[Asked]]:
        tokens = iter(["first", "second", "third"])
        async with serving(answer) as (port, asked), api_server(port, lambda: next(tokens)) as server:
            return await use(KubernetesCluster(server, lambda: may_write)), asked

    return asyncio.run(main())


def ok(asked: Asked) -> tuple[int, Json]:
    return 200, listed("v1", "PodList")


def listed(api_version: str, kind: str, *items: Json) -> Json:
    """Return a list as an API server does: what kind its items are of, the list alone says."""
    return {"apiVersion": api_version, "kind": kind, "metadata": {"resourceVersion": "7"}, "items": list(items)}


def named(name: str) -> Json:
    return {"metadata": {"name": name}}


def stored(replicas: int, version: str) -> tuple[int, Json]:
    """Return the answer with the service at a version."""
    metadata = {"namespace": "default", "name": "cat", "resourceVersion": version}
    return 200, {"metadata": metadata, "spec": {"replicas": replicas}}


def test_a_new_object_is_applied_without_force_and_an_old_one_by_its_uid() -> None:
    body = desired_objects(target())[DEPLOYMENT]

    async def use(cluster: KubernetesCluster) -> None:
        await cluster.apply(DEPLOYMENT, body, None)
        await cluster.apply(DEPLOYMENT, body, "uid-1")

    _, (first, second) = calls(use, ok)

    assert (first.method, first.path) == ("PATCH", "/apis/apps/v1/namespaces/default/deployments/cat")
    assert first.kind == "application/apply-patch+yaml"
    assert first.query == {"fieldManager": "shoal-operator", "force": "false", "fieldValidation": "Strict"}
    assert first.body == body
    assert second.query["force"] == "true"
    assert second.body["metadata"]["uid"] == "uid-1"


def test_a_merge_patch_is_for_the_very_version_that_it_was_made_for() -> None:
    stored = {"metadata": {"namespace": "default", "name": "cat", "resourceVersion": "7"}}
    patch = {"spec": {"selector": {"tier": None}}}
    _, (asked,) = calls(lambda cluster: cluster.merge(SERVICE, stored, patch), ok)

    assert (asked.method, asked.path) == ("PATCH", "/api/v1/namespaces/default/services/cat")
    assert asked.kind == "application/merge-patch+json"
    assert asked.body == {**patch, "metadata": {"resourceVersion": "7"}}


def made_by(replica_set: str) -> Json:
    owner = {"kind": "ReplicaSet", "name": replica_set, "uid": "1", "controller": True}
    return {"metadata": {"name": "p", "ownerReferences": [owner]}}


def test_observation_reads_every_kind_with_owned_pods_and_endpoints() -> None:
    def answer(asked: Asked) -> tuple[int, Json]:
        if asked.path.endswith("/pods"):
            foreign = {"metadata": {"name": "theirs", "labels": {"serving.shoal.dev/inferenceservice": "cat"}}}
            items = [made_by("cat-5d9c7b4f"), made_by("cat-next-5d9c7b4f"), foreign]
            return 200, listed("v1", "PodList", *items)
        if asked.path.endswith("/endpointslices"):
            return 200, listed("discovery.k8s.io/v1", "EndpointSliceList", named("cat-1"), named("cat"))
        if asked.path.endswith("/services/cat"):
            return 200, {"kind": "Service"}
        return 404, {"message": "not found"}

    observation, asked = calls(lambda cluster: cluster.observe(CAT, service()), answer)

    head = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"}
    found = tuple({**head, **named(name)} for name in ("cat-1", "cat"))
    assert observation.children == {SERVICE: {"kind": "Service"}, ENDPOINT_SLICE: found[1]}  # type: ignore[attr-defined]
    pod = {"apiVersion": "v1", "kind": "Pod", **made_by("cat-5d9c7b4f")}
    assert observation.pods == (pod,)  # type: ignore[attr-defined]
    assert observation.slices == found  # type: ignore[attr-defined]
    assert len(asked) == 12
    assert "/api/v1/namespaces/default/services/cat-peers" in [each.path for each in asked]
    pods = next(a for a in asked if a.path == "/api/v1/namespaces/default/pods")
    assert pods.query == {"labelSelector": "serving.shoal.dev/inferenceservice=cat"}
    slices = next(a for a in asked if a.path == "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices")
    assert slices.query == {"labelSelector": "kubernetes.io/service-name=cat"}


def test_a_candidate_is_read_with_its_pods_where_the_strategy_has_one() -> None:
    def answer(asked: Asked) -> tuple[int, Json]:
        if asked.path.endswith("/pods"):
            candidates = "candidate" in asked.query["labelSelector"]
            return 200, listed("v1", "PodList", made_by("cat-candidate-5d9c7b4f" if candidates else "cat-5d9c7b4f"))
        if asked.path.endswith("/deployments/cat-candidate"):
            return 200, {"kind": "Deployment"}
        return 404, {"message": "not found"}

    judged = service(with_fields(MINIMAL, rollout={"strategy": "Shadow"}))
    observation, asked = calls(lambda cluster: cluster.observe(CAT, judged), answer)

    found = [each["metadata"]["ownerReferences"][0]["name"] for each in observation.candidate_pods]  # type: ignore[attr-defined]
    assert found == ["cat-candidate-5d9c7b4f"]
    assert len(observation.pods) == 1  # type: ignore[attr-defined]
    assert {"labelSelector": "serving.shoal.dev/candidate=cat"} in [each.query for each in asked]
    # The end of a rollout is in the status, also after the strategy has changed.
    ending = {**service(), "status": {"rollout": {"phase": "Stable"}}}
    assert len(calls(lambda cluster: cluster.observe(CAT, ending), answer)[1]) == len(asked)


def test_what_a_list_shows_is_what_was_written_and_is_not_written_again() -> None:
    """Items of built-in kinds have neither apiVersion nor kind; those of custom kinds have both."""
    hosting = Hosting(20000, ("10.0.0.1",), open=True)
    stored = desired_objects(replace(target(), hosting=hosting))[ENDPOINT_SLICE]
    stored["metadata"] |= {"uid": "uid-1"}
    bare = {name: value for name, value in stored.items() if name not in ("apiVersion", "kind")}

    def answer(asked: Asked) -> tuple[int, Json]:
        if asked.path.endswith("/endpointslices"):
            return 200, listed("discovery.k8s.io/v1", "EndpointSliceList", bare)
        return (200, listed("v1", "PodList")) if asked.path.endswith("/pods") else (404, {"message": "not found"})

    observation, _ = calls(lambda cluster: cluster.observe(CAT, service()), answer)

    changes = plan_changes(replace(target(), hosting=hosting), observation.children)  # type: ignore[attr-defined]
    assert ENDPOINT_SLICE not in [action.kind for action in changes.actions]


def test_a_slice_of_the_services_name_without_its_label_is_seen_where_the_service_may_sleep() -> None:
    def answer(asked: Asked) -> tuple[int, Json]:
        if asked.query.get("fieldSelector") == "metadata.name=cat":
            return 200, listed("discovery.k8s.io/v1", "EndpointSliceList", named("cat"))
        return (200, listed("v1", "List")) if asked.path.endswith("s") else (404, {"message": "not found"})

    seen = []
    for minimum in (0, 1):
        spec = with_fields(MINIMAL, scaling={"minReplicas": minimum, "maxReplicas": 2})
        observation, _ = calls(lambda cluster: cluster.observe(CAT, service(spec)), answer)  # noqa: B023
        seen.append(ENDPOINT_SLICE in observation.children)  # type: ignore[attr-defined]
    assert seen == [True, False]


def test_a_list_without_items_has_none() -> None:
    empty = {"kind": "InferenceServiceList", "items": None}
    assert calls(lambda cluster: cluster.list_services(()), lambda _: (200, empty))[0] == []


def test_a_deletion_names_the_object_it_means_and_forgives_one_that_is_gone() -> None:
    _, (asked,) = calls(lambda cluster: cluster.delete(SERVICE, CAT, "uid-1"), lambda _: (409, {"message": "other"}))

    assert (asked.method, asked.path) == ("DELETE", "/api/v1/namespaces/default/services/cat")
    assert asked.body["preconditions"] == {"uid": "uid-1"}


def test_the_status_is_applied_to_its_subresource_for_this_very_service() -> None:
    _, (asked,) = calls(lambda cluster: cluster.apply_status(service(), {"replicas": 1}), ok)

    assert asked.path == "/apis/serving.shoal.dev/v1alpha1/namespaces/default/inferenceservices/cat/status"
    assert asked.body["metadata"]["uid"] == service()["metadata"]["uid"]
    assert asked.body["status"] == {"replicas": 1}
    assert "spec" not in asked.body


@pytest.mark.parametrize(("generation", "echoes"), [(1, 1), (2, 0)])
def test_a_spec_that_changed_while_the_status_was_written_is_news(generation: int, echoes: int) -> None:
    written: list[Json] = []

    async def main() -> None:
        stored = service(generation=generation)
        async with serving(lambda _: (200, stored)) as (port, _), api_server(port) as server:
            await KubernetesCluster(server, lambda: True, written.append).apply_status(service(generation=1), {})

    asyncio.run(main())

    assert len(written) == echoes


def test_the_scale_is_a_merge_patch_of_the_replicas_of_the_very_version_that_was_read() -> None:
    result, (read, asked) = calls(lambda cluster: cluster.scale(CAT, 3, was=1), lambda _: stored(1, "7"))

    assert result
    assert (read.method, read.path) == ("GET", asked.path.removesuffix("/scale"))
    assert asked.path.endswith("/inferenceservices/cat/scale")
    body = {"metadata": {"resourceVersion": "7"}, "spec": {"replicas": 3}}
    assert (asked.kind, asked.body) == ("application/merge-patch+json", body)


def test_replicas_that_another_has_set_meanwhile_are_not_written_over() -> None:
    result, (read,) = calls(lambda cluster: cluster.scale(CAT, 3, was=9), lambda _: stored(1, "7"))

    assert result is None
    assert read.method == "GET"


def test_replicas_that_another_sets_between_the_read_and_the_write_are_not_written_over() -> None:
    answers = iter([stored(9, "7"), stored(1, "8")])

    def answer(asked: Asked) -> tuple[int, Json]:
        return next(answers) if asked.method == "GET" else (409, {"message": "the object has been modified"})

    result, asked = calls(lambda cluster: cluster.scale(CAT, 3, was=9), answer)

    assert result is None
    assert [each.method for each in asked] == ["GET", "PATCH", "GET"]


def test_a_status_that_is_written_meanwhile_keeps_no_scale_from_being_written() -> None:
    versions = iter(["7", "8"])
    answers = iter([(409, {"message": "the object has been modified"}), stored(3, "9")])

    def answer(asked: Asked) -> tuple[int, Json]:
        return stored(9, next(versions)) if asked.method == "GET" else next(answers)

    result, asked = calls(lambda cluster: cluster.scale(CAT, 3, was=9), answer)

    assert result
    assert asked[-1].body["metadata"] == {"resourceVersion": "8"}


def test_a_scale_that_always_meets_another_version_ends_as_the_conflict_that_it_is() -> None:
    def answer(asked: Asked) -> tuple[int, Json]:
        return stored(9, "7") if asked.method == "GET" else (409, {"message": "modified"})

    with pytest.raises(ApiError, match="409"):
        calls(lambda cluster: cluster.scale(CAT, 3, was=9), answer)


def test_a_service_that_is_gone_is_not_scaled() -> None:
    result, asked = calls(lambda cluster: cluster.scale(CAT, 3, was=1), lambda _: (404, {"message": "not found"}))

    assert result is None
    assert [each.method for each in asked] == ["GET"]


def test_what_is_lost_with_a_pod_is_an_annotation_of_that_very_pod() -> None:
    _, (asked,) = calls(lambda cluster: cluster.set_deletion_cost(Key("default", "cat-1"), "uid-1", -1), ok)

    assert asked.path == "/api/v1/namespaces/default/pods/cat-1"
    assert asked.kind == "application/merge-patch+json"
    annotations = {"controller.kubernetes.io/pod-deletion-cost": "-1"}
    assert asked.body == {"metadata": {"uid": "uid-1", "annotations": annotations}}


def test_the_lease_is_created_and_later_replaced() -> None:
    lease = Key("default", "shoal-operator")

    async def use(cluster: KubernetesCluster) -> None:
        await cluster.write_lease(lease, {"metadata": {}})
        await cluster.write_lease(lease, {"metadata": {"resourceVersion": "3"}})

    _, (create, replaced) = calls(use, ok, may_write=False)

    assert (create.method, create.path) == ("POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases")
    assert (replaced.method, replaced.path) == ("PUT", create.path + "/shoal-operator")


def test_what_is_missing_is_none() -> None:
    assert calls(lambda cluster: cluster.read_service(CAT), lambda _: (404, {}))[0] is None


def test_an_operator_that_does_not_lead_sends_no_write() -> None:
    asked: list[Asked] = []

    async def use(cluster: KubernetesCluster) -> None:
        with pytest.raises(NotLeadingError):
            await cluster.apply_status(service(), {})
        with pytest.raises(NotLeadingError):
            await cluster.post_event({"metadata": {"namespace": "default"}})

    _, asked = calls(use, ok, may_write=False)

    assert asked == []


def test_an_expired_token_is_read_anew_once() -> None:
    def answer(asked: Asked) -> tuple[int, Json]:
        return (200, {"kind": "x"}) if asked.token == "Bearer second" else (401, {"message": "expired"})

    result, asked = calls(lambda cluster: cluster.read_service(CAT), answer)

    assert result == {"kind": "x"}
    assert [note.token for note in asked] == ["Bearer first", "Bearer second"]


def test_a_token_that_stays_wrong_is_an_error() -> None:
    with pytest.raises(ApiError, match="401: expired"):
        calls(lambda cluster: cluster.read_service(CAT), lambda _: (401, {"message": "expired"}))


def busy(times: int, after: str, status: int = 429) -> Answer:
    """Return a server that asks for patience so many times."""
    left = [times]

    def answer(asked: Asked) -> tuple[int, Json, Mapping[str, str]]:
        left[0] -= 1
        return (status, {"message": "too many requests"}, {"Retry-After": after}) if left[0] >= 0 else (200, {}, {})

    return answer


def waits(answer: Answer, may_write: Callable[[], bool] = lambda: True) -> tuple[list[float], list[Asked]]:
    """Write once; return how long was waited (s), and what was asked."""
    slept: list[float] = []

    async def sleep(duration_s: float) -> None:
        slept.append(duration_s)

    async def main() -> list[Asked]:
        async with serving(answer) as (port, asked), api_server(port, sleep=sleep) as server:
            with contextlib.suppress(ApiError, NotLeadingError):
                await KubernetesCluster(server, may_write).set_deletion_cost(CAT, "uid-1", -1)
            return asked

    return slept, asyncio.run(main())


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_of_the_server_is_honored(status: int) -> None:
    slept, asked = waits(busy(2, "3", status))

    assert slept == [3, 3]
    assert len(asked) == 3
    assert asked[0] == asked[2]


@pytest.mark.parametrize(("times", "after", "tries"), [(9, "1", 3), (9, "6", 1), (9, "soon", 1)])
def test_busy_server_is_retried_by_the_next_reconciliation(times: int, after: str, tries: int) -> None:
    assert len(waits(busy(times, after))[1]) == tries


def test_operator_that_lost_the_lease_while_waiting_does_not_write() -> None:
    leading = iter([True, False])

    assert len(waits(busy(1, "5"), lambda: next(leading))[1]) == 1


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (422, {"message": "spec.replicas: Invalid value"}, "422: spec.replicas: Invalid value"),
        (502, "<html>bad gateway</html>", "502: <html>bad gateway</html>"),
        (500, "", "500: Internal Server Error"),
        (200, "[1]", "200: "),
    ],
)
def test_error_contains_the_servers_message(status: int, body: object, words: str) -> None:
    with pytest.raises(ApiError, match=words):
        calls(lambda cluster: cluster.set_deletion_cost(CAT, "uid-1", -1), lambda _: (status, body))


def test_a_server_that_is_away_is_an_error_without_a_status() -> None:
    async def main() -> None:
        async with api_server(1) as server:
            with pytest.raises(ApiError, match="is unreachable") as caught:
                await KubernetesCluster(server, lambda: True).read_service(CAT)
            assert caught.value.status == 0

    asyncio.run(main())


def test_paths_are_those_of_the_api() -> None:
    assert object_path("v1", "pods", "a", "b") == "/api/v1/namespaces/a/pods/b"
    assert object_path("apps/v1", "deployments", "a") == "/apis/apps/v1/namespaces/a/deployments"


def test_rights_of_an_older_chart_know_no_graphs_and_list_the_services_all_the_same() -> None:
    def answer(asked: Asked) -> tuple[int, Json]:
        if asked.path.endswith("inferencegraphs"):
            return 403, {"message": "inferencegraphs.serving.shoal.dev is forbidden"}
        return 200, listed("serving.shoal.dev/v1alpha1", "InferenceService", named("cat"))

    found, _ = calls(lambda cluster: cluster.list_services(("team-a",)), answer)
    assert [each["metadata"]["name"] for each in found] == ["cat"]  # type: ignore[attr-defined]

    with pytest.raises(ApiError, match="forbidden"):
        calls(lambda cluster: cluster.list_services(()), lambda _: (403, {"message": "forbidden"}))


@pytest.mark.parametrize("cause", ["NamespaceTerminating", "FieldManagerConflict"])
def test_error_has_the_causes_of_the_status(cause: str) -> None:
    status = {"message": "forbidden", "details": {"causes": [{"reason": cause, "message": "x", "field": "y"}]}}

    with pytest.raises(ApiError) as caught:
        calls(lambda cluster: cluster.list_services(()), lambda _: (403, status))
    assert caught.value.is_deletion is (cause == "NamespaceTerminating")
