"""From a Deployment's pod template to the ReplicaSet that stands for it."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from shoal_local.controllers.plans import reference_to

Object = dict[str, Any]
HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MOST = "deployment.kubernetes.io/max-replicas"
_NOT_COPIED = {
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    HISTORY,
    DESIRED,
    MOST,
    "deprecated.deployment.rollback.to",
}
# No vowels, nor what looks like one: a hash must spell nothing.
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def template_hash(template: Object, collisions: int = 0) -> str:
    """Return ten letters that stand for the template."""
    text = json.dumps(template, sort_keys=True) + (str(collisions) if collisions else "")
    digest = hashlib.sha256(text.encode()).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:10])


def same_template(one: Object, other: Object) -> bool:
    """Compare templates but for the hash label, which only ReplicaSets have."""
    return _without_hash(one) == _without_hash(other)


def _without_hash(template: Object) -> Object:
    meta = template.get("metadata") or {}
    labels = {k: v for k, v in (meta.get("labels") or {}).items() if k != HASH_LABEL}
    kept = {k: v for k, v in meta.items() if v is not None}
    return {**template, "metadata": {**kept, "labels": labels}}


def find_new(deployment: Object, replica_sets: Iterable[Object]) -> Object | None:
    """Return the oldest ReplicaSet that has the Deployment's template."""
    template = deployment["spec"]["template"]
    same = [rs for rs in replica_sets if same_template(rs["spec"]["template"], template)]
    return min(same, key=lambda rs: str(rs["metadata"]["creationTimestamp"]), default=None)


def revision_of(obj: Object) -> int:
    """Return the revision number of a Deployment or ReplicaSet; 0 when it has none."""
    text = (obj["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(text) if text.isdigit() else 0


def make_replica_set(deployment: Object, revision: int, replicas: int, most: int) -> Object:
    """Return the ReplicaSet for the Deployment's present template."""
    meta, spec = deployment["metadata"], deployment["spec"]
    collisions = (deployment.get("status") or {}).get("collisionCount", 0)
    mark = {HASH_LABEL: template_hash(spec["template"], collisions)}
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
            "annotations": {
                **copied_annotations(deployment),
                **size_annotations(spec["replicas"], most),
                REVISION: str(revision),
            },
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
    """Return the Deployment's annotations that its ReplicaSets show too: the change's cause."""
    annotations = deployment["metadata"].get("annotations") or {}
    return {key: value for key, value in annotations.items() if key not in _NOT_COPIED}


def size_annotations(desired: int, most: int) -> dict[str, str]:
    """Return what a ReplicaSet remembers of the Deployment's size when it was last scaled."""
    return {DESIRED: str(desired), MOST: str(most)}


def revision_annotations(replica_set: Object, revision: int) -> dict[str, str]:
    """Return the annotations by which a ReplicaSet becomes a later revision. Earlier ones are remembered."""
    before = revision_of(replica_set)
    if before == 0 or before >= revision:
        return {REVISION: str(max(revision, before))}
    history = (replica_set["metadata"].get("annotations") or {}).get(HISTORY, "")
    return {REVISION: str(revision), HISTORY: f"{history},{before}" if history else str(before)}
