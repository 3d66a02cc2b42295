"""Whether the runtime can serve, or the reason why not."""

from enum import StrEnum


class RuntimePhase(StrEnum):
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
        self.phase = RuntimePhase.STARTING
        self.reason = "starting"

    def progress(self, reason: str) -> None:
        """Set the loader's current step, such as "downloading 40 %"."""
        self.reason = reason

    def ready(self) -> None:
        """Mark the model as loaded and warm."""
        self._enter(RuntimePhase.READY, "")

    def stopping(self) -> None:
        """Mark the runtime as accepting no more batches."""
        self._enter(RuntimePhase.STOPPING, "stopping")

    def lost(self, reason: str) -> None:
        """Mark the device as lost, for good."""
        self.reason = reason
        self.phase = RuntimePhase.LOST

    def _enter(self, phase: RuntimePhase, reason: str) -> None:
        if self.phase is not RuntimePhase.LOST:
            self.phase = phase
            self.reason = reason
