"""The ReplicaSet of a Deployment's pod template."""

import hashlib
import json
from collections.abc import Iterable

from shoal_local.objects import Object, reference_to

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
_NOT_COPIED = {"kubectl.kubernetes.io/last-applied-configuration", REVISION}
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""No vowels and no digits that resemble them: a hash must not spell words."""


def template_hash(template: Object) -> str:
    """Return a hash of ten characters for the template."""
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:10])


def find_new(deployment: Object, replica_sets: Iterable[Object]) -> Object | None:
    """Return the oldest ReplicaSet with the Deployment's template."""
    template = _without_hash(deployment["spec"]["template"])
    same = [rs for rs in replica_sets if _without_hash(rs["spec"]["template"]) == template]
    # Two may have the same template after a race of two controllers: all choose the oldest.
    return min(same, key=lambda rs: str(rs["metadata"]["creationTimestamp"]), default=None)


def _without_hash(template: Object) -> Object:
    meta = template.get("metadata") or {}
    labels = {k: v for k, v in (meta.get("labels") or {}).items() if k != HASH_LABEL}
    # Null and absent fields are equal in a template.
    kept = {k: v for k, v in meta.items() if v is not None}
    return {**template, "metadata": {**kept, "labels": labels}}


def revision_of(obj: Object) -> int:
    """Return the revision number of a Deployment or ReplicaSet, or 0 without a valid one."""
    text = (obj["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(text) if text.isdigit() else 0


def make_replica_set(deployment: Object, revision: int, replicas: int) -> Object:
    """Return the ReplicaSet of the Deployment's current template."""
    meta, spec = deployment["metadata"], deployment["spec"]
    mark = {HASH_LABEL: template_hash(spec["template"])}
    template_meta = spec["template"].get("metadata") or {}
    labels = {**(template_meta.get("labels") or {}), **mark}
    selector = spec["selector"]
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{meta['name']}-{mark[HASH_LABEL]}",
            "namespace": meta["namespace"],
            "labels": labels,
            "annotations": {**copied_annotations(deployment), REVISION: str(revision)},
            "ownerReferences": [reference_to(deployment)],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": spec.get("minReadySeconds", 0),
            "selector": {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), **mark}},
            "template": {**spec["template"], "metadata": {**template_meta, "labels": labels}},
        },
    }


def copied_annotations(deployment: Object) -> dict[str, str]:
    """Return the annotations that a ReplicaSet copies from its Deployment, such as the change cause."""
    annotations = deployment["metadata"].get("annotations") or {}
    return {key: value for key, value in annotations.items() if key not in _NOT_COPIED}
