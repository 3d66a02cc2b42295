"""The objects of every namespace: the default service account, and the certificate authority of the API server."""

from shoal_local.apiserver.lifecycle.metadata import for_create
from shoal_local.apiserver.verbs.call import Call
from shoal_local.apiserver.verbs.state import ClusterState
from shoal_local.objects import Object, key_of


def create_defaults(state: ClusterState, call: Call, namespace: str) -> None:
    """Create the missing default objects of a namespace."""
    _ensure(state, call, service_account(namespace))
    _ensure(state, call, root_certificate(namespace, state.authority))


def _ensure(state: ClusterState, call: Call, obj: Object) -> None:
    resource = state.registry.by_kind(obj["apiVersion"], obj["kind"])
    assert resource
    if state.store.get(resource.key, key_of(obj)) is None:
        meta = for_create(obj, resource, uid=state.new_uid(), now=call.timestamp)
        state.write(call, resource, {**obj, "metadata": meta})


def service_account(in_namespace: str) -> Object:
    """Return the default service account of pods in a namespace."""
    meta = {"name": "default", "namespace": in_namespace}
    return {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": meta}


def root_certificate(in_namespace: str, authority: str) -> Object:
    """Return the ConfigMap with the certificate of the API server's authority, PEM."""
    meta = {"name": "kube-root-ca.crt", "namespace": in_namespace}
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta, "data": {"ca.crt": authority}}
