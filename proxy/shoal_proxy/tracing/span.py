"""Data of a trace's span."""

from shoal_proxy.tracing.sampling import SpanContext


class Span:
    """One span. Times are in monotonic seconds.

    Args:
        name: one of several fixed names, without text from clients.
        parent: span of the client.
    """

    __slots__ = ("attributes", "began_s", "context", "ended_s", "events", "failed", "links", "name", "parent")

    def __init__(self, name: str, context: SpanContext, began_s: float, parent: SpanContext | None = None) -> None:
        self.name = name
        self.context = context
        self.parent = parent
        self.began_s = began_s
        self.ended_s = began_s
        self.failed = ""
        self.attributes: dict[str, str | int | float] = {}
        self.events: list[tuple[str, float]] = []
        self.links: list[SpanContext] = []
        """Related spans: a batch's are those of its requests."""
