"""Subresources of pods, service accounts and namespaces: binding, eviction, token, finalize."""

from datetime import timedelta

from shoal_local.apiserver.access.tokens import ISSUER, Account, make_token
from shoal_local.apiserver.errors import bad_request, conflict
from shoal_local.apiserver.kinds.resource import Object, Resource
from shoal_local.apiserver.verbs.admission import read_as
from shoal_local.apiserver.verbs.call import Call, Reply, dig, timestamp
from shoal_local.apiserver.verbs.world import World
from shoal_local.apiserver.verbs.writing import may_go

_SUCCESS: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
_LONGEST_S = 10 * 365 * 86400


def bind(world: World, call: Call) -> Reply:
    """Assign a pod to the node that a Binding names."""
    resource = world.resource(call.target)
    pod = world.existing(resource, call.target)
    node = dig(read_as(world, call, "api.core.v1.Binding"), "target", "name")
    if not node:
        raise bad_request("Binding: target.name: Required value")
    if assigned := pod["spec"].get("nodeName"):
        name = pod["metadata"]["name"]
        raise conflict("pods/binding", "", name, f'pod {name} is already assigned to node "{assigned}"')
    world.write(call, resource, _bound(pod, node, call.timestamp))
    return Reply(_SUCCESS, 201)


def _bound(pod: Object, node: str, now: str) -> Object:
    status = pod.get("status", {})
    others = [c for c in status.get("conditions", []) if c["type"] != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    conditions = [*others, scheduled]
    spec = {**pod["spec"], "nodeName": node}
    return {**pod, "spec": spec, "status": {**status, "conditions": conditions}}


def issue_token(world: World, call: Call) -> Reply:
    """Answer a TokenRequest for a service account."""
    resource = world.resource(call.target)
    account = world.existing(resource, call.target)
    request = read_as(world, call, "api.authentication.v1.TokenRequest")
    spec = dig(request, "spec") or {}
    lifetime_s = int(spec.get("expirationSeconds") or 3600)
    if not 600 <= lifetime_s <= _LONGEST_S:
        raise bad_request(f"spec.expirationSeconds must be within 600 and {_LONGEST_S}, not {lifetime_s}")
    audiences = tuple(spec.get("audiences") or (ISSUER,))
    meta = account["metadata"]
    holder = Account(meta["namespace"], meta["name"], meta["uid"])
    now_s = int(call.now.timestamp())
    token = make_token(holder, world.signing_key, now_s=now_s, lifetime_s=lifetime_s, audiences=audiences)
    until = timestamp(call.now + timedelta(seconds=lifetime_s))
    body = {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"], "creationTimestamp": call.timestamp},
        "spec": {"audiences": list(audiences), "expirationSeconds": lifetime_s},
        "status": {"token": token, "expirationTimestamp": until},
    }
    return Reply(body, 201)


def store_finalizers(world: World, call: Call, resource: Resource, live: Object, finalizers: list[str]) -> Object:
    """Store a namespace's finalizers, or let it go."""
    new = {**live, "spec": {**live.get("spec", {}), "finalizers": finalizers}}
    return world.remove(call, resource, new) if may_go(new) else world.write(call, resource, new)
