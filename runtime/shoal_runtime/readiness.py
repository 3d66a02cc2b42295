"""Whether the runtime can serve, and if not, why."""

from enum import StrEnum


class Phase(StrEnum):
    """Where the process is in its life."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    LOST = "lost"


class Readiness:
    """The one answer to health questions; the loader and the watchdog write it.

    Each field is one reference, so threads may read and write without a lock. `LOST` is final.
    """

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.reason = "starting"

    def progress(self, reason: str) -> None:
        """Say what the loader is doing: "downloading 40 %"."""
        self.reason = reason

    def ready(self) -> None:
        """Say that the model is loaded and warm."""
        self._enter(Phase.READY, "")

    def stopping(self) -> None:
        """Say that no more batches are taken."""
        self._enter(Phase.STOPPING, "stopping")

    def lost(self, reason: str) -> None:
        """Say that the device is gone; nothing takes this back."""
        self.reason = reason
        self.phase = Phase.LOST

    def _enter(self, phase: Phase, reason: str) -> None:
        if self.phase is not Phase.LOST:
            self.phase = phase
            self.reason = reason
