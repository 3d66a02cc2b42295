r"""Reads the protobuf bodies that typed Go clients send.

`kubectl create token`, leader election, events.

A body is ``k8s\0`` and a ``runtime.Unknown`` that names the kind and holds the message. Types
come from the OpenAPI definitions; the field numbers, which those lack, are listed below for the
kinds that such clients write. Everything else is asked for in JSON.
"""

import base64
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from shoal_local.apiserver.errors import unsupported_media_type
from shoal_local.apiserver.schemas.node import Node

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\0"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_JSON = ("application/json", "application/yaml")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Field names in the order of their numbers, from 1; "-" is a number that is not used.
# "&" is a message whose fields belong to the one around it.
_COMMON = "metadata spec status"
_ORDERS: Mapping[str, str] = {
    "meta.v1.ObjectMeta": "name generateName namespace selfLink uid resourceVersion "
    "generation creationTimestamp "
    "deletionTimestamp deletionGracePeriodSeconds labels annotations ownerReferences "
    "finalizers - - managedFields",
    "meta.v1.OwnerReference": "kind - name uid apiVersion controller blockOwnerDeletion",
    "meta.v1.ManagedFieldsEntry": "manager operation apiVersion time - fieldsType "
    "fieldsV1 subresource",
    "meta.v1.DeleteOptions": "gracePeriodSeconds preconditions orphanDependents "
    "propagationPolicy dryRun "
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "meta.v1.Preconditions": "uid resourceVersion",
    "meta.v1.LabelSelector": "matchLabels matchExpressions",
    "meta.v1.LabelSelectorRequirement": "key operator values",
    "core.v1.Binding": "metadata target",
    "core.v1.ConfigMap": "metadata data binaryData immutable",
    "core.v1.Event": "metadata involvedObject reason message source firstTimestamp "
    "lastTimestamp count type eventTime "
    "series action related reportingComponent reportingInstance",
    "core.v1.EventSeries": "count lastObservedTime",
    "core.v1.EventSource": "component host",
    "core.v1.LocalObjectReference": "name",
    "core.v1.Namespace": _COMMON,
    "core.v1.NamespaceSpec": "finalizers",
    "core.v1.NamespaceStatus": "phase conditions",
    "core.v1.ObjectReference": "kind namespace name uid apiVersion resourceVersion fieldPath",
    "core.v1.Secret": "metadata data type stringData immutable",
    "core.v1.ServiceAccount": "metadata secrets imagePullSecrets automountServiceAccountToken",
    "autoscaling.v1.Scale": _COMMON,
    "autoscaling.v1.ScaleSpec": "replicas",
    "autoscaling.v1.ScaleStatus": "replicas selector",
    "authentication.v1.BoundObjectReference": "kind apiVersion name uid",
    "authentication.v1.SelfSubjectReview": "metadata status",
    "authentication.v1.SelfSubjectReviewStatus": "userInfo",
    "authentication.v1.TokenRequest": _COMMON,
    "authentication.v1.TokenRequestSpec": "audiences - boundObjectRef expirationSeconds",
    "authentication.v1.TokenRequestStatus": "token expirationTimestamp",
    "authentication.v1.TokenReview": _COMMON,
    "authentication.v1.TokenReviewSpec": "token audiences",
    "authentication.v1.TokenReviewStatus": "authenticated user error audiences",
    "authentication.v1.UserInfo": "username uid groups extra",
    "authorization.v1.LocalSubjectAccessReview": _COMMON,
    "authorization.v1.NonResourceAttributes": "path verb",
    "authorization.v1.ResourceAttributes": "namespace verb group version resource subresource name",
    "authorization.v1.SelfSubjectAccessReview": _COMMON,
    "authorization.v1.SelfSubjectAccessReviewSpec": "resourceAttributes nonResourceAttributes",
    "authorization.v1.SelfSubjectRulesReview": _COMMON,
    "authorization.v1.SelfSubjectRulesReviewSpec": "namespace",
    "authorization.v1.SubjectAccessReview": _COMMON,
    "authorization.v1.SubjectAccessReviewSpec": "resourceAttributes "
    "nonResourceAttributes user groups extra uid",
    "authorization.v1.SubjectAccessReviewStatus": "allowed reason evaluationError denied",
    "authorization.v1.SubjectRulesReviewStatus": "resourceRules nonResourceRules "
    "incomplete evaluationError",
    "coordination.v1.Lease": "metadata spec",
    "coordination.v1.LeaseSpec": "holderIdentity leaseDurationSeconds acquireTime "
    "renewTime leaseTransitions strategy "
    "preferredHolder",
    "events.v1.Event": "metadata eventTime series reportingController "
    "reportingInstance action reason regarding related "
    "note type deprecatedSource deprecatedFirstTimestamp deprecatedLastTimestamp deprecatedCount",
    "events.v1.EventSeries": "count lastObservedTime",
    "networking.v1.HTTPIngressPath": "path backend pathType",
    "networking.v1.HTTPIngressRuleValue": "paths",
    "networking.v1.Ingress": _COMMON,
    "networking.v1.IngressBackend": "- - resource service",
    "networking.v1.IngressLoadBalancerIngress": "ip hostname - ports",
    "networking.v1.IngressLoadBalancerStatus": "ingress",
    "networking.v1.IngressPortStatus": "port protocol error",
    "networking.v1.IngressRule": "host &http",
    "networking.v1.IngressServiceBackend": "name port",
    "networking.v1.IngressSpec": "defaultBackend tls rules ingressClassName",
    "networking.v1.IngressStatus": "loadBalancer",
    "networking.v1.IngressTLS": "hosts secretName",
    "networking.v1.ServiceBackendPort": "name number",
    "core.v1.TypedLocalObjectReference": "apiGroup kind name",
    "policy.v1.Eviction": "metadata deleteOptions",
    "rbac.v1.AggregationRule": "clusterRoleSelectors",
    "rbac.v1.ClusterRole": "metadata rules aggregationRule",
    "rbac.v1.ClusterRoleBinding": "metadata subjects roleRef",
    "rbac.v1.PolicyRule": "verbs apiGroups resources resourceNames nonResourceURLs",
    "rbac.v1.Role": "metadata rules",
    "rbac.v1.RoleBinding": "metadata subjects roleRef",
    "rbac.v1.RoleRef": "apiGroup kind name",
    "rbac.v1.Subject": "kind apiGroup name namespace",
}


def read_protobuf(
    body: bytes, definition: str, definitions: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the object in a body, as JSON would hold it.

    ``definition`` is the name of the kind that is expected; the body's own kind decides if it is
    DeleteOptions.

    Raises:
        ApiError: 415, the field numbers of this kind are not known here.
        ValueError: the body is broken.
    """
    if not body.startswith(MAGIC):
        raise ValueError("a protobuf body starts with k8s and a zero byte")
    outer = dict(_fields(body[len(MAGIC) :]))
    head = {number: bytes(value).decode() for number, value in _fields(outer.get(1, b""))}
    kind = head.get(2, "")
    if kind == "DeleteOptions":
        definition = f"{_META}DeleteOptions"
    node = Node({"$ref": f"#/$defs/{definition}"}, definitions)
    return {"apiVersion": head.get(1, ""), "kind": kind, **_message(outer.get(2, b""), node)}


def _names(node: Node) -> list[str]:
    short = ".".join(node.reference.split(".")[-3:])
    if short not in _ORDERS:
        raise unsupported_media_type(_JSON)
    return _ORDERS[short].split()


def _message(data: bytes, node: Node) -> dict[str, Any]:
    names = _names(node)
    found: dict[str, Any] = {}
    for number, raw in _fields(data):
        name = names[number - 1] if number <= len(names) else "-"
        child = node.child(name.lstrip("&"))
        if child is None:
            # A field that is newer than the list above.
            raise unsupported_media_type(_JSON)
        inner = dict(_fields(raw)).get(1, b"") if name.startswith("&") else raw
        _put(found, name.lstrip("&"), inner, child)
    return {name: value for name, value in found.items() if value not in ("", None)}


def _put(found: dict[str, Any], name: str, raw: Any, node: Node) -> None:
    values = node.resolved.get("additionalProperties")
    if node.item is not None:
        found.setdefault(name, []).append(_value(raw, node.item))
    elif isinstance(values, Mapping):
        entry = dict(_fields(raw))
        inner = _value(entry.get(2, b""), Node(values, node.definitions))
        found.setdefault(name, {})[bytes(entry.get(1, b"")).decode()] = inner
    else:
        found[name] = _value(raw, node)


def _value(raw: Any, node: Node) -> Any:
    if node.reference in (f"{_META}Time", f"{_META}MicroTime"):
        return _time(raw, micro=node.reference.endswith("MicroTime"))
    if node.reference == f"{_META}FieldsV1":
        return orjson.loads(dict(_fields(raw)).get(1, b"{}"))
    if node.type == "boolean":
        return bool(raw)
    if node.type == "integer":
        return raw - 2**64 if raw >= 2**63 else raw
    if node.type == "string":
        byte = node.resolved.get("format") == "byte"
        return base64.b64encode(raw).decode() if byte else bytes(raw).decode()
    return _message(raw, node)


def _time(raw: bytes, *, micro: bool) -> str | None:
    parts = dict(_fields(raw))
    if not parts:
        return None
    moment = _EPOCH + timedelta(seconds=parts.get(1, 0), microseconds=parts.get(2, 0) // 1000)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and raw value of each field: an int, or bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        length, at = _varint(data, at) if wire == 2 else ({1: 8, 5: 4}.get(wire, len(data)), at)
        if at + length > len(data):
            raise ValueError("the protobuf body ends within a field")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("the protobuf body ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number in the protobuf body has more than 64 bits")


def field_names() -> dict[str, set[str]]:
    """Return the listed field names by the end of their definition's name."""
    return {k: {name.lstrip("&") for name in v.split()} - {"-"} for k, v in _ORDERS.items()}
