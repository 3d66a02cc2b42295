"""What every object passes on its way into the store: clean, fill in defaults, check."""

from typing import Any

from shoal_local.apiserver.kinds.resource import Object, Resource


def admit(
    world: Any, call: Any, resource: Resource, obj: Object, live: Object | None = None
) -> Object:
    """Return it."""
    return obj
