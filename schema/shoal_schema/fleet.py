"""What the operator tells of every service's pods: the document of ``GET /v1/fleet`` at its port.

Only the operator that leads tells it; others answer 503. Of pods without a word, `load` is None.
"""

from typing import Final

from msgspec import Struct

from shoal_schema.load import Load

PATH: Final = "/v1/fleet"


class Pod(Struct, frozen=True):
    """A ready pod, and what its proxy said last."""

    name: str
    load: Load | None = None


class Service(Struct, frozen=True):
    """A service's ready pods."""

    namespace: str
    name: str
    pods: tuple[Pod, ...] = ()


class Fleet(Struct, frozen=True):
    """All services."""

    services: tuple[Service, ...] = ()
