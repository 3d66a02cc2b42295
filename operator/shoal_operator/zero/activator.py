"""The activator's state and table version, and the conditions for scaling to zero."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shoal_operator.children.observation import Key
from shoal_operator.manifests.environment import ADMIN_PORT, runtime_concurrency
from shoal_schema.decoding import SpecError
from shoal_schema.interfaces.activator import ActivatorAsynchronous
from shoal_schema.resource.service import InferenceServiceSpec
from shoal_schema.resource.traffic import ScalingMode


class NoActivatorError(SpecError):
    """A service scales to zero, but no activator can hold its requests."""


NO_ACTIVATOR = (
    "spec.scaling.minReplicas is 0, but no activator is installed to hold requests while no pod runs. Set"
    " activator.enabled in the operator's chart, or set minReplicas to at least 1"
)


def is_externally_scaled(spec: InferenceServiceSpec) -> bool:
    """Return whether an HPA, KEDA or a user sets a service's replicas instead of the operator."""
    return spec.scaling is None or spec.scaling.mode is not ScalingMode.INTERNAL


def scales_to_zero(spec: InferenceServiceSpec) -> bool:
    """Return whether a service scales to zero."""
    return spec.scaling is not None and not is_externally_scaled(spec) and spec.scaling.min_replicas == 0


def max_forwards(spec: InferenceServiceSpec) -> int:
    """Return how many requests the activator forwards to one pod at a time."""
    # Two full batches for each that runs at a time keep the pod busy without queueing.
    return 2 * spec.batching.max_batch_size * runtime_concurrency(spec)


def held_asynchronously(spec: InferenceServiceSpec) -> ActivatorAsynchronous | None:
    """Return how the activator treats asynchronous requests; None if the service accepts none."""
    asynchronous = spec.asynchronous
    if asynchronous is None:
        return None
    return ActivatorAsynchronous(
        asynchronous.timeout_seconds, asynchronous.result_seconds, asynchronous.store is not None
    )


@dataclass(slots=True)
class ActivatorPod:
    """One pod of the activator."""

    address: str
    ready: bool
    last_response_s: float
    """When it was found or responded last, in monotonic seconds."""
    version: int = -1
    """Version of the routing table that it uses; -1: none of this operator's."""
    waiting: Mapping[str, int] = field(default_factory=dict)
    """Held requests by service."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By service, the reason that it could not open the port."""
    silent: bool = False
    """It has not responded for long."""

    def serves(self, key: Key) -> bool:
        """Return whether this activator can receive requests of a service."""
        return self.ready and str(key) not in self.refused


def activator_problem(key: Key, port: int, activators: Iterable[ActivatorPod], *, listing: str) -> str:
    """Return why activators cannot hold a service's requests, or "".

    Args:
        key: key of the service.
        port: port of the service in the activator.
        activators: all activator pods.
        listing: a command that lists the activator's pods.
    """
    ready = [activator for activator in activators if activator.ready]
    if not ready:
        return f"no pod of the activator is ready. {listing} shows why"
    for activator in ready:
        if why := activator.refused.get(str(key)):
            return (
                f"the activator at {activator.address} cannot open this service's port {port} ({why}). Free the port,"
                " or set other ports in the chart (activator.ports)"
            )
        if activator.silent:
            return (
                f"the activator at {activator.address} does not respond to the operator on port {ADMIN_PORT}. Check"
                f" whether a NetworkPolicy or a service mesh blocks it, and {listing}"
            )
    return ""


@dataclass(slots=True)
class TableVersion:
    """The version of the activator's routing table.

    Args:
        epoch: distinguishes the tables of different operator processes and leaderships.
    """

    epoch: str
    number: int = 0

    @property
    def mark(self) -> str:
        """Epoch and version as text, which activators return in their reports."""
        return f"{self.epoch}:{self.number}"

    def read(self, mark: str) -> int:
        """Return the table version that an activator's mark contains.

        -1 if the mark is of another epoch or malformed.
        """
        epoch, _, version = mark.partition(":")
        return int(version) if epoch == self.epoch and version.isdigit() else -1
