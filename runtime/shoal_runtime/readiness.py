"""Readiness of the runtime: whether it can serve, or the reason why not."""

from enum import StrEnum


class RuntimePhase(StrEnum):
    """Phase in the life of the runtime's process."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    LOST = "lost"


class Readiness:
    """Phase and reason for health requests, set by the loader and the watchdog.

    Threads read and write each field without a lock. `LOST` is final.
    """

    def __init__(self) -> None:
        self.phase = RuntimePhase.STARTING
        self.reason = "starting"

    def progress(self, reason: str) -> None:
        """Set the current step of loading, such as "downloading 40 %"."""
        self.reason = reason

    def ready(self) -> None:
        """Mark the model as loaded and warmed up."""
        self._enter(RuntimePhase.READY, "")

    def stopping(self) -> None:
        """Mark the runtime as accepting no more batches."""
        self._enter(RuntimePhase.STOPPING, "stopping")

    def lost(self, reason: str) -> None:
        """Mark the device as permanently lost."""
        self.reason = reason
        self.phase = RuntimePhase.LOST

    def _enter(self, phase: RuntimePhase, reason: str) -> None:
        if self.phase is not RuntimePhase.LOST:
            self.phase = phase
            self.reason = reason
