"""What every namespace holds: the default service account, and the certificate by which pods know the server."""

from shoal_local.apiserver.lifecycle.metadata import for_create
from shoal_local.apiserver.verbs.call import Call
from shoal_local.apiserver.verbs.world import World
from shoal_local.objects import Object, key_of


def create_defaults(world: World, call: Call, namespace: str) -> None:
    """Create what is missing in a namespace."""
    _ensure(world, call, service_account(namespace))
    _ensure(world, call, root_certificate(namespace, world.authority))


def _ensure(world: World, call: Call, obj: Object) -> None:
    resource = world.registry.by_kind(obj["apiVersion"], obj["kind"])
    assert resource
    if world.store.get(resource.key, key_of(obj)) is None:
        meta = for_create(obj, resource, uid=world.new_uid(), now=call.timestamp)
        world.write(call, resource, {**obj, "metadata": meta})


def service_account(in_namespace: str) -> Object:
    """Return the account that pods of a namespace run as unless they name another."""
    meta = {"name": "default", "namespace": in_namespace}
    return {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": meta}


def root_certificate(in_namespace: str, authority: str) -> Object:
    """Return the ConfigMap by which pods know the server: its authority's certificate, PEM."""
    meta = {"name": "kube-root-ca.crt", "namespace": in_namespace}
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta, "data": {"ca.crt": authority}}
