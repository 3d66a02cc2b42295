"""A cluster without a socket or a clock, and objects to put into it."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import orjson

from shoal_local.apiserver.access.rbac import User
from shoal_local.apiserver.server import load_data, load_definitions
from shoal_local.apiserver.storage.store import Store
from shoal_local.apiserver.verbs.access import ADMIN
from shoal_local.apiserver.verbs.call import ApiResponse, Call, parse_path, verb_of
from shoal_local.apiserver.verbs.collecting import GarbageCollection
from shoal_local.apiserver.verbs.dispatch import check_call, respond
from shoal_local.apiserver.verbs.state import ClusterState
from shoal_local.apiserver.verbs.writing import bootstrap

Object = dict[str, Any]
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SIGNING_KEY = b"k" * 32
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclass
class Cluster:
    """The state of a cluster, a clock that only tests advance, and short methods for requests."""

    state: ClusterState
    now: datetime = START
    user: User = field(default=ADMIN)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        **query: Any,
    ) -> ApiResponse:
        """Execute one request in the pure part of the server."""
        where, _, text = path.partition("?")
        options = dict(part.split("=", 1) for part in text.split("&") if part)
        options |= {name: str(value) for name, value in query.items()}
        call = self.call(method, where, body, kind, options)
        check_call(self.state, call)
        return respond(self.state, call)

    def call(self, method: str, path: str, body: Any, kind: str, query: Mapping[str, str]) -> Call:
        """Return the parsed request."""
        target = parse_path(path)
        text = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        verb = verb_of(method, target, query)
        return Call(verb, target, self.user, self.now, query, text, kind, "tester/1.0")

    def get(self, path: str) -> Object:
        """Return the body of a GET."""
        return self.request("GET", path).body

    def post(self, path: str, body: Any, **query: Any) -> Object:
        """Return the body of a POST."""
        return self.request("POST", path, body, **query).body

    def patch(self, path: str, body: Any, kind: str = MERGE, **query: Any) -> Object:
        """Return the body of a PATCH."""
        return self.request("PATCH", path, body, kind=kind, **query).body

    def apply(self, path: str, body: Any, manager: str = "me", **query: Any) -> Object:
        """Apply server-side."""
        return self.patch(path, body, APPLY, fieldManager=manager, **query)

    def delete(self, path: str, **options: Any) -> Object:
        """Return the body of a DELETE."""
        return self.request("DELETE", path, options or None).body

    def collect(self) -> None:
        """Run one pass of the garbage collector."""
        GarbageCollection(self.state, self.now).run()

    def later(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += timedelta(seconds=seconds)


DEFINITIONS = cache(load_definitions)


def new_cluster() -> Cluster:
    """Return a cluster with its first objects; uids are numbers, so that runs are alike."""
    numbers = itertools.count(1)
    state = ClusterState(
        Store(),
        DEFINITIONS(),
        lambda: f"{next(numbers):05d}000-0000-4000-8000-000000000000",
        signing_key=SIGNING_KEY,
        admin_token="admin",
        authority="CERTIFICATE",
    )
    bootstrap(state, load_data("first_objects.yaml"), START)
    return Cluster(state)


CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
PODS = "/api/v1/namespaces/default/pods"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def widget_definition(spec: Object | None = None) -> Object:
    """Return the definition of a kind with a default, a keyed list, a set, a rule, and a scale."""
    text, number = {"type": "string"}, {"type": "integer"}
    part = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": text, "count": {"type": "integer", "default": 1}},
    }
    fields = {
        "size": {"type": "integer", "minimum": 1, "maximum": 10},
        "color": {"type": "string", "enum": ["red", "green"], "default": "red"},
        "replicas": {"type": "integer", "default": 1},
        "min": number,
        "max": number,
        "parts": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": part,
        },
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": text},
        "amount": {"x-kubernetes-int-or-string": True},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    }
    rule = {
        "rule": "!has(self.min) || !has(self.max) || self.min <= self.max",
        "message": "min must not exceed max",
    }
    spec = spec or {
        "type": "object",
        "required": ["size"],
        "properties": fields,
        "x-kubernetes-validations": [rule],
    }
    status = {
        "type": "object",
        "properties": {"replicas": number, "selector": text, "phase": text},
    }
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {"spec": spec, "status": status},
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {
                "kind": "Widget",
                "plural": "widgets",
                "shortNames": ["wd"],
                "categories": ["all"],
            },
            "versions": [version],
        },
    }


def widget(name: str = "w", **spec: Any) -> Object:
    """Return a Widget."""
    return {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": {"size": 3, **spec},
    }


def config_map(name: str, **data: str) -> Object:
    """Return a ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
