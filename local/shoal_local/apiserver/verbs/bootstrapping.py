"""Creation of the initial objects of every cluster, which ``first_objects.yaml`` lists."""

from collections.abc import Iterable
from datetime import datetime

import orjson

from shoal_local.apiserver.access.rbac import User
from shoal_local.apiserver.verbs.call import Call, Target
from shoal_local.apiserver.verbs.state import ClusterState
from shoal_local.apiserver.verbs.writing import create
from shoal_local.objects import Object, key_of

SYSTEM = User("system:apiserver", ("system:masters",))


def bootstrap(state: ClusterState, objects: Iterable[Object], now: datetime) -> None:
    """Create the initial objects that are missing."""
    for obj in objects:
        resource = state.registry.by_kind(obj["apiVersion"], obj["kind"])
        assert resource
        # A restored store has them already.
        if state.store.get(resource.key, key_of(obj)) is None:
            target = Target(resource.group, resource.version, resource.plural)
            create(state, Call("create", target, SYSTEM, now, body=orjson.dumps(obj), agent="apiserver"))
