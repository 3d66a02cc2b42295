"""Malformed and hostile requests: each gets an API error, and the store stays intact."""

import contextlib
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_local.apiserver.errors import ApiError
from shoal_local.apiserver.schemas.protobuf import MAGIC, MEDIA_TYPE
from shoal_local.apiserver.verbs.dispatch import respond
from tests.local.apiserver.cluster import (
    APPLY,
    CRDS,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    WIDGETS,
    Cluster,
    Object,
    new_cluster,
    widget,
    widget_definition,
)

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab.", max_size=3)
KEYS = """
metadata spec status name namespace labels annotations ownerReferences finalizers managedFields
data template containers ports rules subjects roleRef replicas selector versions schema names size
parts tags uid kind apiVersion items op path value $patch
"""
keys = st.sampled_from(KEYS.split())
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(keys, values, max_size=5)
PATHS = (
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/pods",
    "/api/v1/namespaces/default/services",
    "/api/v1/namespaces/default/secrets",
    "/api/v1/namespaces/default/events",
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/apis/apps/v1/namespaces/default/deployments",
    "/apis/batch/v1/namespaces/default/jobs",
    "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
    "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
    "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
    "/apis/authorization.k8s.io/v1/subjectaccessreviews",
    CRDS,
    WIDGETS,
)
DEPLOYMENT = {
    "metadata": {"name": "web"},
    "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {
            "metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "main", "image": "web:1"}]},
        },
    },
}
quietly = settings(max_examples=60, deadline=None)


def sound(cluster: Cluster) -> None:
    """Assert that all stored objects can be listed, printed and collected, and roles evaluated."""
    cluster.collect()
    for resource in cluster.state.registry.stored.values():
        for obj in cluster.state.store.objects_of(resource.key):
            assert obj["metadata"]["name"]
            assert obj["metadata"]["uid"]


@quietly
@given(st.sampled_from(PATHS), objects, objects, st.booleans())
def test_any_object_is_stored_or_refused(path: str, body: Object, spec: Object, dressed: bool) -> None:
    cluster = new_cluster()
    cluster.post(CRDS, widget_definition())
    body = {**body, "metadata": {"name": "x"}, "spec": spec} if dressed else body
    with contextlib.suppress(ApiError):
        cluster.post(path, body)
    sound(cluster)


@quietly
@given(
    st.sampled_from([MERGE, STRATEGIC, JSON_PATCH, APPLY]),
    objects | values,
    st.sampled_from(["", "/status", "/scale"]),
)
def test_any_patch_is_done_or_refused(kind: str, patch: Any, subresource: str) -> None:
    cluster = new_cluster()
    path = "/apis/apps/v1/namespaces/default/deployments"
    cluster.post(path, DEPLOYMENT)
    with contextlib.suppress(ApiError):
        cluster.patch(f"{path}/web{subresource}", patch, kind, fieldManager="m", force="true")
    sound(cluster)


@quietly
@given(st.binary(max_size=40))
def test_any_bytes_are_refused(body: bytes) -> None:
    cluster = new_cluster()
    for kind, data in (
        ("application/json", body),
        ("application/yaml", body),
        (MEDIA_TYPE, MAGIC + body),
    ):
        call = cluster.call("POST", "/api/v1/namespaces/default/configmaps", None, kind, {})
        with pytest.raises(ApiError) as raised:
            respond(
                cluster.state,
                type(call)(**{f: getattr(call, f) for f in call.__slots__} | {"body": data}),
            )
        assert raised.value.code in (400, 415, 422)


@pytest.mark.parametrize(
    ("path", "body", "code", "message"),
    [
        ("/api/v1/namespaces/default/configmaps", [], 400, "cannot unmarshal"),
        (
            "/api/v1/namespaces/default/configmaps",
            {"metadata": {}},
            422,
            "name or generateName is required",
        ),
        (
            "/api/v1/namespaces/default/configmaps",
            {"metadata": {"name": "A_b"}},
            422,
            "RFC 1123 subdomain",
        ),
        (
            "/api/v1/namespaces/default/services",
            {"metadata": {"name": "1a"}, "spec": {}},
            422,
            "DNS-1035 label",
        ),
        (
            "/api/v1/namespaces/nope/configmaps",
            {"metadata": {"name": "a"}},
            404,
            'namespaces "nope" not found',
        ),
        (
            "/api/v1/namespaces/default/configmaps",
            {"kind": "Pod"},
            400,
            "cannot be handled as a ConfigMap",
        ),
        (
            "/api/v1/namespaces/default/configmaps",
            {"apiVersion": "v2"},
            400,
            r"the API version in the data \(v2\) does not match the expected API version \(v1\)",
        ),
        (
            "/api/v1/namespaces/default/configmaps",
            {"metadata": {"name": "a", "namespace": "b"}},
            400,
            "does not match the namespace sent on the request",
        ),
        (
            "/api/v1/namespaces/default/configmaps",
            {"metadata": {"name": "a"}, "data": {"x": 1}},
            400,
            "cannot unmarshal number into Go struct field",
        ),
        (
            "/api/v1/namespaces/default/pods",
            {"metadata": {"name": "a"}, "spec": {}},
            422,
            "spec.containers: Required value",
        ),
        (
            "/api/v1/namespaces/default/pods",
            {
                "metadata": {"name": "a"},
                "spec": {"serviceAccountName": "x", "containers": [{"name": "c"}]},
            },
            403,
            'serviceaccount "x" not found',
        ),
    ],
)
def test_refusals_name_what_is_wrong(cluster: Cluster, path: str, body: Any, code: int, message: str) -> None:
    with pytest.raises(ApiError, match=message) as raised:
        cluster.post(path, body)
    assert raised.value.code == code


def test_a_name_that_is_taken_is_refused(cluster: Cluster) -> None:
    cluster.post(CRDS, widget_definition())
    cluster.post(WIDGETS, widget())
    with pytest.raises(ApiError, match=r'widgets\.example\.com "w" already exists') as raised:
        cluster.post(WIDGETS, widget())
    assert (raised.value.code, raised.value.reason) == (409, "AlreadyExists")


def test_every_refusal_can_be_sent(cluster: Cluster) -> None:
    with pytest.raises(ApiError) as raised:
        cluster.post(WIDGETS, widget())
    status = raised.value.as_status()
    assert orjson.loads(orjson.dumps(status))["status"] == "Failure"
