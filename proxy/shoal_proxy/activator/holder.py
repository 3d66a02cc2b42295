"""The held requests of all services, within the activator's limits."""

from collections.abc import Iterable, Mapping

from shoal_proxy.activator.queue import HeldRequest, ServiceQueue
from shoal_proxy.errors import BodyTooLarge, Overloaded, ProxyError
from shoal_schema.interfaces.activator import ActivatorService
from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.process.settings.activator import ActivatorProcess


class RequestHolder:
    """The held requests of all services."""

    def __init__(self, settings: ActivatorProcess) -> None:
        self._settings = settings
        self.queues: dict[str, ServiceQueue] = {}
        self.requests = 0
        self.size_bytes = 0

    def follow(self, services: Iterable[ActivatorService]) -> list[HeldRequest]:
        """Apply a new table of services; return the held requests of removed services."""
        known = {service.name: service for service in services}
        # Collected before they are removed.
        orphans = [held for name, queue in self.queues.items() if name not in known for held in queue.held]
        for name in self.queues.keys() - known.keys():
            for held in list(self.queues[name].held):
                self.leave(name, held)
            del self.queues[name]
        for name, service in known.items():
            if name in self.queues:
                # Held requests stay in their order.
                self.queues[name].follow(service)
            else:
                self.queues[name] = ServiceQueue(service)
        return orphans

    def waiting(self) -> Mapping[str, int]:
        """Return the number of waiting requests by service, if above 0."""
        return {name: queue.waiting for name, queue in self.queues.items() if queue.waiting}

    def check_size(self, name: str, size_bytes: int) -> None:
        """Check a body's size against the limit of the service's pods.

        Raises:
            BodyTooLarge: the size exceeds the limit.
        """
        most_bytes = self.queues[name].service.max_body_bytes
        if size_bytes > most_bytes:
            raise BodyTooLarge(f"the body is over the limit of {most_bytes} bytes")

    def enter(self, name: str, held: HeldRequest, now_s: float) -> None:
        """Hold another request.

        Raises:
            Overloaded: the service or the activator has reached its limit of requests.
        """
        queue, limits = self.queues[name], self._settings
        if len(queue.held) >= limits.service_max_requests or self.requests >= limits.max_requests:
            raise self._full(
                queue, f"{len(queue.held)} requests wait for this service", RejectionReason.QUEUE_ROWS, now_s
            )
        queue.enter(held)
        self.requests += 1

    def grow(self, name: str, held: HeldRequest, size_bytes: int, now_s: float) -> None:
        """Add received bytes of a held request's body.

        Raises:
            ProxyError: the body is too large, or the service or the activator has reached its limit of bytes.
        """
        queue, limits = self.queues[name], self._settings
        self.check_size(name, held.size_bytes + size_bytes)
        if queue.size_bytes + size_bytes > limits.service_max_bytes or self.size_bytes + size_bytes > limits.max_bytes:
            raise self._full(
                queue, f"{queue.size_bytes} bytes wait for this service", RejectionReason.QUEUE_BYTES, now_s
            )
        held.size_bytes += size_bytes
        queue.size_bytes += size_bytes
        self.size_bytes += size_bytes

    def leave(self, name: str, held: HeldRequest) -> None:
        """Remove a held request; a second call has no effect."""
        if held.gone:
            return
        self.queues[name].leave(held)
        self.requests -= 1
        self.size_bytes -= held.size_bytes

    def expired(self, name: str, held: HeldRequest, now_s: float) -> ProxyError:
        """Return the error for a request that no pod ran before its deadline."""
        queue = self.queues[name]
        if not queue.service.addresses:
            text = "no pod of this service was ready in time: the service is starting from zero replicas"
        elif held.refusals:
            text = f"no pod of this service accepted the request in time: it was rejected {held.refusals} times"
        else:
            text = "all pods of this service were busy with other requests until the deadline"
        return Overloaded(text, reason=RejectionReason.DEADLINE, retry_after_s=queue.retry_after_s(now_s))

    def _full(self, queue: ServiceQueue, held: str, reason: RejectionReason, now_s: float) -> ProxyError:
        text = f"the activator is full: {held}, {self.requests} requests of {self.size_bytes} bytes in total"
        return Overloaded(text, reason=reason, retry_after_s=queue.retry_after_s(now_s))
