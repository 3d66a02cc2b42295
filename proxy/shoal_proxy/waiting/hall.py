"""The lines of all services, within the bounds of the room."""

from collections.abc import Iterable, Mapping

from shoal_proxy.errors import BodyTooLarge, Overloaded, ProxyError
from shoal_proxy.waiting.line import Held, Line
from shoal_schema.metrics import Rejection
from shoal_schema.processes import WaitingProcess
from shoal_schema.waiting import RoomService


class Hall:
    """Everybody who waits."""

    def __init__(self, settings: WaitingProcess) -> None:
        self._settings = settings
        self.lines: dict[str, Line] = {}
        self.requests = 0
        self.size_bytes = 0

    def follow(self, services: Iterable[RoomService]) -> list[Held]:
        """Take a new table; return those who waited for a service that is no more, to be told so."""
        known = {service.name: service for service in services}
        orphans = [held for name, line in self.lines.items() if name not in known for held in line.held]
        for name in self.lines.keys() - known.keys():
            for held in list(self.lines[name].held):
                self.leave(name, held)
            del self.lines[name]
        for name, service in known.items():
            if name in self.lines:
                self.lines[name].follow(service)
            else:
                self.lines[name] = Line(service)
        return orphans

    def waiting(self) -> Mapping[str, int]:
        """Return how many requests wait, by service, of those where there are any."""
        return {name: line.waiting for name, line in self.lines.items() if line.waiting}

    def check_size(self, name: str, size_bytes: int) -> None:
        """Refuse a body that is longer than the service's pods take.

        Raises:
            BodyTooLarge: it is.
        """
        most_bytes = self.lines[name].service.max_body_bytes
        if size_bytes > most_bytes:
            raise BodyTooLarge(f"the body is over the limit of {most_bytes} bytes")

    def enter(self, name: str, held: Held, now_s: float) -> None:
        """Hold one more request.

        Raises:
            Overloaded: too many are held.
        """
        line, most = self.lines[name], self._settings
        if len(line.held) >= most.service_max_requests or self.requests >= most.max_requests:
            raise self._full(line, f"{len(line.held)} requests wait for this service", Rejection.QUEUE_ROWS, now_s)
        line.enter(held)
        self.requests += 1

    def grow(self, name: str, held: Held, size_bytes: int, now_s: float) -> None:
        """Account for bytes of a body that have come.

        Raises:
            ProxyError: the body is too large, or too much is held.
        """
        line, most = self.lines[name], self._settings
        self.check_size(name, held.size_bytes + size_bytes)
        if line.size_bytes + size_bytes > most.service_max_bytes or self.size_bytes + size_bytes > most.max_bytes:
            raise self._full(line, f"{line.size_bytes} bytes wait for this service", Rejection.QUEUE_BYTES, now_s)
        held.size_bytes += size_bytes
        line.size_bytes += size_bytes
        self.size_bytes += size_bytes

    def leave(self, name: str, held: Held) -> None:
        """Forget a request, however it ended."""
        if held.gone:
            return
        self.lines[name].leave(held)
        self.requests -= 1
        self.size_bytes -= held.size_bytes

    def expired(self, name: str, held: Held, now_s: float) -> ProxyError:
        """Return what a request is told whose time is over, and which no pod has."""
        line = self.lines[name]
        if not line.service.addresses:
            text = "no pod of this service was ready in time: it sleeps while nobody calls, and is being started"
        elif held.refusals:
            text = f"no pod of this service took the request in time: it was refused {held.refusals} times"
        else:
            text = "the pods of this service were busy with other requests until the time was over"
        return Overloaded(text, reason=Rejection.DEADLINE, retry_after_s=line.retry_after_s(now_s))

    def _full(self, line: Line, held: str, reason: Rejection, now_s: float) -> ProxyError:
        text = f"the waiting room is full: {held}, {self.requests} requests of {self.size_bytes} bytes in all"
        return Overloaded(text, reason=reason, retry_after_s=line.retry_after_s(now_s))
