from typing import Any

import pytest

from shoal_local.kubelet.variables import (
    ConfigError,
    Context,
    expand,
    make_variables,
)

Object = dict[str, Any]
OBJECTS: dict[tuple[str, str], Object] = {
    ("ConfigMap", "conf"): {"data": {"a": "1", "bad key": "2"}},
    ("Secret", "secret"): {"data": {"token": "czNjcmV0"}},
}


def variables(*env: Object, sources: tuple[Object, ...] = ()) -> dict[str, str]:
    meta = {"name": "web", "namespace": "default", "uid": "u", "labels": {"app": "cat"}}
    context = Context(
        pod={"metadata": meta, "spec": {"nodeName": "n"}},
        pod_ip="127.1.2.3",
        host_ip="127.0.0.1",
        objects=OBJECTS,
    )
    return make_variables({"env": list(env), "envFrom": list(sources)}, context)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A):80", "1:80"),
        ("$(MISSING)", "$(MISSING)"),
        ("$$(A)", "$(A)"),
        ("$A $(A", "$A $(A"),
        ("$$$(A)", "$1"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1"}) == expanded


def test_a_process_can_listen_on_its_pods_address() -> None:
    field = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    listen = {"name": "SHOAL_PROXY_LISTEN", "value": "$(POD_IP):8080"}
    assert variables(field, listen)["SHOAL_PROXY_LISTEN"] == "127.1.2.3:8080"
    assert variables(listen, field)["SHOAL_PROXY_LISTEN"] == "$(POD_IP):8080"


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ({"fieldRef": {"fieldPath": "metadata.labels['app']"}}, "cat"),
        ({"fieldRef": {"fieldPath": "spec.nodeName"}}, "n"),
        ({"configMapKeyRef": {"name": "conf", "key": "a"}}, "1"),
        ({"secretKeyRef": {"name": "secret", "key": "token"}}, "s3cret"),
    ],
)
def test_values_come_from_what_they_refer_to(source: Object, value: str) -> None:
    assert variables({"name": "X", "valueFrom": source})["X"] == value


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"secretKeyRef": {"name": "none", "key": "a"}}, 'secret "none" not found'),
        ({"configMapKeyRef": {"name": "conf", "key": "z"}}, "couldn't find key z"),
        ({"fieldRef": {"fieldPath": "status.phase"}}, "fieldPath 'status.phase' is not supported"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "resourceFieldRef is not supported"),
    ],
)
def test_a_reference_that_leads_nowhere_says_so(source: Object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        variables({"name": "X", "valueFrom": source})


def test_an_optional_reference_may_lead_nowhere() -> None:
    source = {"secretKeyRef": {"name": "none", "key": "a", "optional": True}}
    assert variables({"name": "X", "valueFrom": source}) == {}


def test_all_keys_that_are_names_become_variables_and_one_that_is_named_goes_before_them() -> None:
    conf, secret = {"configMapRef": {"name": "conf"}}, {"secretRef": {"name": "secret"}, "prefix": "P_"}
    given = variables({"name": "a", "value": "own"}, {"name": "b", "value": "$(P_token)"}, sources=(conf, secret))
    assert given == {"a": "own", "P_token": "s3cret", "b": "s3cret"}
    assert variables(sources=({"secretRef": {"name": "none", "optional": True}},)) == {}
    with pytest.raises(ConfigError, match='secret "none" not found'):
        variables(sources=({"secretRef": {"name": "none"}},))
