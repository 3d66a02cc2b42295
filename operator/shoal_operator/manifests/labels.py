"""Labels, annotations, and the metadata that all objects share."""

import hashlib
import json
from typing import Any

from shoal_operator.manifests.target import Target
from shoal_schema.fields.declaring import Json
from shoal_schema.resource import GROUP

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "shoal-operator"
FIELD_MANAGER = "shoal-operator"
"""The same in all releases and installs, so that a successor owns the fields of its predecessor."""
SERVICE_LABEL = f"{GROUP}/inferenceservice"
BATCH_LABEL = f"{GROUP}/batchinference"
CANDIDATE_LABEL = f"{GROUP}/candidate"
"""On a candidate's pods instead of `SERVICE_LABEL`, so that nothing that selects the stable pods selects them."""
GRAPH_LABEL = f"{GROUP}/inferencegraph"
"""On a graph's objects, in addition to `SERVICE_LABEL`, which selects pods of services and graphs."""
SERVICE_NAME_LABEL = "kubernetes.io/service-name"
"""The label of an EndpointSlice with its Service's name."""
HASH_ANNOTATION = f"{GROUP}/applied-hash"
OPERATOR_ANNOTATION = f"{GROUP}/operator"
TEMPLATE_HASH_ANNOTATION = f"{GROUP}/template-hash"
SPEC_HASH_ANNOTATION = f"{GROUP}/spec-hash"
"""On a Deployment, outside its template: hash of the spec, the same for all releases of the operator."""
REVISION_ANNOTATION = f"{GROUP}/revision"
"""On a Deployment: the revision of its pods (`manifests.revisions`)."""
POD_SPEC_ANNOTATION = f"{GROUP}/pod-spec"
"""On a Deployment: the parts of the spec that its pods were made from.

While they differ from the newest spec, the Service has a copy, from which a deleted Deployment is restored.
"""
WATCH_SELECTOR = f"{MANAGED_BY_LABEL}={MANAGED_BY}"


def selector_labels(target: Target) -> Json:
    """Return the labels that select a service's stable pods, or those of its candidate; they are immutable."""
    return {CANDIDATE_LABEL if target.is_candidate else SERVICE_LABEL: target.name}


def batch_selector_text(name: str) -> str:
    """Return the label selector of a ``BatchInference``'s pods."""
    # A Service of the same name must not select these pods.
    return f"{BATCH_LABEL}={name}"


def selector_text(name: str) -> str:
    """Return the label selector of a service's pods, as text."""
    return f"{SERVICE_LABEL}={name}"


def candidate_selector_text(name: str) -> str:
    """Return the label selector of the pods of a service's candidate, as text."""
    return f"{CANDIDATE_LABEL}={name}"


def object_labels(target: Target) -> Json:
    """Return the labels of all objects of a service or a job, but not of a candidate's pods."""
    return {**_shared_labels(target), **_owner_labels(target)}


def pod_labels(target: Target) -> Json:
    """Return the labels of pods: those of the spec, and the operator's own."""
    # A label of the operator's own domain would make the pod match a selector of a service or a candidate.
    given = {name: text for name, text in (target.spec.pod.labels or {}).items() if not name.startswith(f"{GROUP}/")}
    own = selector_labels(target) if target.is_candidate else _owner_labels(target)
    return {**given, **_shared_labels(target), **own}


def _shared_labels(target: Target) -> Json:
    return {
        "app.kubernetes.io/name": "shoal",
        "app.kubernetes.io/instance": target.name,
        MANAGED_BY_LABEL: MANAGED_BY,
    }


def _owner_labels(target: Target) -> Json:
    if target.batch:
        return {BATCH_LABEL: target.name}
    return {SERVICE_LABEL: target.name, **({GRAPH_LABEL: target.name} if target.graph else {})}


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
    """Return a Kubernetes object of a service or job, with its hash."""
    body: Json = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name or target.child_name,
            "namespace": target.namespace,
            "labels": {**object_labels(target), **(labels or {})},
            "annotations": {**(annotations or {})},
            "ownerReferences": [target.owner_reference],
        },
        **content,
    }
    # Shows a changed declaration even where the API server normalizes fields.
    body["metadata"]["annotations"][HASH_ANNOTATION] = digest(body)
    return body


def digest(body: Json | list[Json]) -> str:
    """Return a short hash of canonical JSON."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
