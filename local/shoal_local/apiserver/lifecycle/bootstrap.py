"""The objects that every cluster has from the start."""

from typing import Any

Object = dict[str, Any]
NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


def namespace(name: str) -> Object:
    """Return a Namespace as a client would send it."""
    return {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}}


def first_objects() -> list[Object]:
    """Return them in the order in which they can be created."""
    return [namespace(name) for name in NAMESPACES]
