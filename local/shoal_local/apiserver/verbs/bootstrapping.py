"""Creates the objects that every cluster has from the start."""

from datetime import datetime

import orjson

from shoal_local.apiserver.access.rbac import User
from shoal_local.apiserver.lifecycle.bootstrap import first_objects
from shoal_local.apiserver.storage.store import name_of
from shoal_local.apiserver.verbs.call import Call, Target
from shoal_local.apiserver.verbs.world import World
from shoal_local.apiserver.verbs.writing import create

SYSTEM = User("system:apiserver", ("system:masters",))


def bootstrap(world: World, now: datetime) -> None:
    """Create what is missing of the first objects."""
    for obj in first_objects():
        resource = world.registry.by_kind(obj["apiVersion"], obj["kind"])
        assert resource
        if world.store.get(resource.key, name_of(obj)) is None:
            target = Target(resource.group, resource.version, resource.plural, obj["metadata"].get("namespace", ""))
            create(world, Call("create", target, SYSTEM, now, body=orjson.dumps(obj), agent="apiserver"))
