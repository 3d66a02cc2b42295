"""The document of ``GET /v1/fleet`` at the operator: pods and load of every service.

Only the leading operator returns the document; others respond with 503. `load` is None for pods that were not scraped.
"""

from typing import Final

from msgspec import Struct

from shoal_schema.interfaces.load import Load

PATH: Final = "/v1/fleet"


class FleetPod(Struct, frozen=True):
    """A ready pod and the last load report of its proxy."""

    name: str
    # None if the pod was not scraped since it became ready.
    load: Load | None = None


class FleetService(Struct, frozen=True):
    """A service and its ready pods."""

    namespace: str
    name: str
    pods: tuple[FleetPod, ...] = ()
    candidates: tuple[FleetPod, ...] = ()
    """Pods of the candidate that the service is compared with."""


class Fleet(Struct, frozen=True):
    """All services and their ready pods."""

    services: tuple[FleetService, ...] = ()
