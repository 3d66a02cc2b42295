"""A service with a port of the activator.

The activator holds the service's requests while no replica runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from shoal_operator.zero.activator import scales_to_zero
from shoal_operator.zero.decision import HOLDING, Phase, ZeroState
from shoal_schema.interfaces.activator import ActivatorService
from shoal_schema.resource.service import InferenceServiceSpec


@dataclass(slots=True)
class HostedService:
    """One service with a port of the activator."""

    spec: InferenceServiceSpec
    port: int
    release: Callable[[], object]
    """Frees the port and updates the routing table; called when the service loses its place."""
    state: ZeroState | None = None
    entry: ActivatorService | None = None
    """The service's entry of the routing table."""
    version: int = 0
    """Version of the routing table with the newest entry."""
    in_path: bool = False
    """It has an EndpointSlice, so activators may be among its endpoints."""
    endpoints: tuple[str, ...] = ()
    """Addresses of the activators among its endpoints."""
    arrived: Mapping[str, int | None] = field(default_factory=dict)
    """By uid, each pod's counter of arrived rows; None without a reading."""
    stopping_until_s: dict[str, float] = field(default_factory=dict)
    """By uid, until when pods of a Deployment scaled to zero get no requests."""
    stepping: bool = False
    """A write of its replicas is in progress."""

    @property
    def phase(self) -> Phase:
        """Phase of scaling to zero and back."""
        return self.state.phase if self.state else Phase.AWAKE

    @property
    def scales_to_zero(self) -> bool:
        """Whether the newest spec scales to zero."""
        return scales_to_zero(self.spec)

    @property
    def holding(self) -> bool:
        """Whether the service's pods are stopping or gone."""
        return self.scales_to_zero and (self.phase in HOLDING or self.spec.replicas == 0)

    def close(self) -> None:
        """Free the service's port of the activator."""
        self.release()


@dataclass(frozen=True, slots=True)
class ReservedPort:
    """The port in the status of a service that has not been reconciled since this operator leads."""

    port: int
    release: Callable[[], object]
    """Frees the port."""

    def close(self) -> None:
        """Free the port."""
        self.release()


@dataclass(frozen=True, slots=True)
class WithoutPort:
    """A service that needs a port while none is free."""
