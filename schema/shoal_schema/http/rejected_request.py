"""Placeholder of a rejected request, which keeps responses in order. Pure."""

from typing import Final


class NoEvent:
    """Stand-in for uvicorn's event of more body or a lost connection, where no task awaits it."""

    def set(self) -> None:
        """Do nothing, as no task awaits the event."""


NO_EVENT: Final = NoEvent()


class RejectedRequest:
    """Replacement for uvicorn's request cycle of a rejected request."""

    __slots__ = ("disconnected", "error", "keep_alive", "message_event", "response_complete", "url")

    def __init__(self, error: Exception, url: bytes) -> None:
        self.error = error
        self.url = url
        self.keep_alive = False
        self.response_complete = False
        self.disconnected = False
        self.message_event = NO_EVENT
