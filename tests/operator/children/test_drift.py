"""Drift: what we declare must be stored; what others add is theirs."""

import copy
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_operator.children.drift import differences, holds, quantity
from shoal_operator.manifests.deployment import make_deployment
from tests.operator.samples import EVERYTHING, target

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_everything_holds_itself(value: Any) -> None:
    assert holds(value, copy.deepcopy(value))


@given(st.dictionaries(st.text(max_size=4), JSON), st.dictionaries(st.text(max_size=4), JSON))
def test_what_others_add_is_left_alone(desired: dict[str, Any], added: dict[str, Any]) -> None:
    assert holds(desired, {**added, **desired})


@given(JSON, JSON)
def test_there_is_a_difference_where_something_does_not_hold(desired: Any, live: Any) -> None:
    assert holds(desired, live) or list(differences(desired, live))


def test_differences_are_named_as_managed_fields_name_them() -> None:
    desired = {"spec": {"replicas": 1, "containers": [{"name": "runtime", "image": "a"}], "ports": [1]}}
    live = {"spec": {"replicas": 2, "containers": [{"name": "runtime", "image": "b", "tty": True}], "ports": [2]}}

    assert list(differences(desired, live)) == [
        ("f:spec", "f:replicas"),
        ("f:spec", "f:containers", 'k:{"name":"runtime"}', "f:image"),
        ("f:spec", "f:ports"),
    ]


def test_a_deployment_with_the_servers_defaults_holds() -> None:
    desired = make_deployment(target(EVERYTHING))
    live = copy.deepcopy(desired)
    live["status"] = {"replicas": 1}
    live["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"
    runtime, proxy, audit = live["spec"]["template"]["spec"]["containers"]
    proxy["resources"]["requests"]["cpu"] = "500m"
    audit["imagePullPolicy"] = "IfNotPresent"
    audit["resources"]["limits"]["memory"] = "512Mi"
    runtime["resources"]["limits"]["nvidia.com/gpu"] = "1"
    live["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = "now"
    live["spec"]["template"]["spec"]["containers"].append({"name": "injected"})

    assert holds(desired, live)


@pytest.mark.parametrize(
    "path",
    [
        ("spec", "replicas"),
        ("spec", "template", "spec", "containers", 1, "image"),
        ("spec", "template", "spec", "containers", 0, "env", 0, "value"),
        ("spec", "strategy", "rollingUpdate", "maxSurge"),
        ("metadata", "labels", "app.kubernetes.io/managed-by"),
        ("metadata", "annotations", "serving.shoal.dev/applied-hash"),
    ],
)
def test_a_foreign_change_does_not_hold(path: tuple[Any, ...]) -> None:
    desired = make_deployment(target(EVERYTHING))
    live = copy.deepcopy(desired)
    holder = live
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = "changed"

    assert not holds(desired, live)


def test_a_removed_container_or_toleration_does_not_hold() -> None:
    desired = make_deployment(target(EVERYTHING))
    for field in ("containers", "tolerations", "volumes"):
        live = copy.deepcopy(desired)
        live["spec"]["template"]["spec"][field].pop()
        assert not holds(desired, live)


def test_empty_values_that_the_server_drops_hold() -> None:
    assert holds({"value": "", "list": [], "object": {}}, {})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.5", "500m"),
        ("1", 1),
        ("1Gi", "1024Mi"),
        ("1000M", "1G"),
        ("1e3", "1k"),
        ("0.0001", "1m"),
        ("100u", "1m"),
        ("1.0001", "1001m"),
        ("1n", "1m"),
        ("1e30", "9223372036854775807"),
    ],
)
def test_quantities_are_compared_by_their_size(one: Any, other: Any) -> None:
    assert quantity(one) == quantity(other)
    assert holds({"limits": {"x": one}}, {"limits": {"x": other}})
    assert not holds({"annotations": {"x": str(one)}}, {"annotations": {"x": str(other)}}) or str(one) == str(other)


def test_a_text_that_is_no_quantity_is_only_itself() -> None:
    assert quantity("much") == "much"
    assert quantity("2Ki") == Decimal(2048)
