"""Whether the runtime can serve, or the reason why not."""

from enum import StrEnum


class Phase(StrEnum):
    """Phase of the process's life."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    LOST = "lost"


class Readiness:
    """State for health requests, written by the loader and the watchdog.

    Each field is one reference, so threads read and write it without a lock. `LOST` is final.
    """

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.reason = "starting"

    def progress(self, reason: str) -> None:
        """Set the loader's current step, such as "downloading 40 %"."""
        self.reason = reason

    def ready(self) -> None:
        """Mark the model as loaded and warm."""
        self._enter(Phase.READY, "")

    def stopping(self) -> None:
        """Mark the runtime as stopping: it accepts no further batches."""
        self._enter(Phase.STOPPING, "stopping")

    def lost(self, reason: str) -> None:
        """Mark the device as lost, for good."""
        self.reason = reason
        self.phase = Phase.LOST

    def _enter(self, phase: Phase, reason: str) -> None:
        if self.phase is not Phase.LOST:
            self.phase = phase
            self.reason = reason
