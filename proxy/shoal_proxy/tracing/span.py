"""What a trace tells of one request, or of one batch."""

from shoal_proxy.tracing.sampling import Context


class Span:
    """What is told of one request or batch. Times are monotonic (s).

    Args:
        name: of the kind of thing: few, and never the caller's words.
        parent: the caller's span.
        links: spans that it has to do with.
    """

    __slots__ = ("attributes", "began_s", "context", "ended_s", "events", "failed", "links", "name", "parent")

    def __init__(self, name: str, context: Context, began_s: float, parent: Context | None = None) -> None:
        self.name = name
        self.context = context
        self.parent = parent
        self.began_s = began_s
        self.ended_s = began_s
        self.failed = ""
        self.attributes: dict[str, str | int | float] = {}
        self.events: list[tuple[str, float]] = []
        self.links: list[Context] = []
