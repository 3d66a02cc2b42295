"""Labels, and the metadata that every object shares."""

import hashlib
import json
from typing import Any

from shoal_operator.manifests.target import Target
from shoal_schema.declaring import Json
from shoal_schema.resource import GROUP

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "shoal-operator"
FIELD_MANAGER = "shoal-operator"
"""Under which name the operator's fields are owned, of every release and install: a successor takes them over."""
SERVICE_LABEL = f"{GROUP}/inferenceservice"
BATCH_LABEL = f"{GROUP}/batchinference"
GRAPH_LABEL = f"{GROUP}/inferencegraph"
"""Of a graph's objects, beside `SERVICE_LABEL`, by which pods are picked: services and graphs share their names."""
SERVICE_NAME_LABEL = "kubernetes.io/service-name"
"""What an EndpointSlice carries, beside a copy of its Service's labels."""
HASH_ANNOTATION = f"{GROUP}/applied-hash"
OPERATOR_ANNOTATION = f"{GROUP}/operator"
TEMPLATE_HASH_ANNOTATION = f"{GROUP}/template-hash"
SPEC_HASH_ANNOTATION = f"{GROUP}/spec-hash"
"""On a Deployment, beside the template: which spec it was made of, whichever operator did."""
WATCH_SELECTOR = f"{MANAGED_BY_LABEL}={MANAGED_BY}"


def selector_labels(name: str) -> Json:
    """Return the labels that pick a service's pods; they can never change."""
    return {SERVICE_LABEL: name}


def batch_selector_text(name: str) -> str:
    """Return what picks the pods of a ``BatchInference``, which no Service of the same name may lead to."""
    return f"{BATCH_LABEL}={name}"


def selector_text(name: str) -> str:
    """Return the same as a selector string, for ``status.selector`` and lists."""
    return f"{SERVICE_LABEL}={name}"


def object_labels(target: Target) -> Json:
    """Return the labels of every object of a service, or of a job."""
    name = target.name
    return {
        "app.kubernetes.io/name": "shoal",
        "app.kubernetes.io/instance": name,
        MANAGED_BY_LABEL: MANAGED_BY,
        **({BATCH_LABEL: name} if target.batch else selector_labels(name)),
        **({GRAPH_LABEL: name} if target.graph else {}),
    }


def make_object(
    target: Target,
    kind: str,
    api_version: str,
    *,
    name: str | None = None,
    labels: Json | None = None,
    annotations: Json | None = None,
    **content: Any,
) -> Json:
    """Return a whole object: type, metadata, content, and the hash of all three."""
    body: Json = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name or target.name,
            "namespace": target.namespace,
            "labels": {**object_labels(target), **(labels or {})},
            "annotations": {**(annotations or {})},
            "ownerReferences": [target.owner_reference],
        },
        **content,
    }
    body["metadata"]["annotations"][HASH_ANNOTATION] = digest(body)
    return body


def digest(body: Json) -> str:
    """Return a short hash of an object's canonical JSON."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
