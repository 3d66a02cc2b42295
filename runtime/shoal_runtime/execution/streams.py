"""Interface to a device that executes work in streams, such as a CUDA device.

The work of one stream runs in order. Streams run concurrently, unless one waits for an event of another. Calls return
when the work is queued.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from shoal_runtime.execution.graph_cache import CapturedGraph


class StreamEvent(Protocol):
    """Event in a stream, which marks the end of the work queued before it."""

    def record(self, stream: Any) -> None:
        """Queue the event in a stream."""

    def synchronize(self) -> None:
        """Wait until the device has executed all work queued before this event."""

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds between this event and a later one; the device has executed both."""


class Stream(Protocol):
    """Queue of work on the device."""

    def wait_event(self, event: Any) -> None:
        """Start later work of this stream only after an event of another stream."""

    def synchronize(self) -> None:
        """Wait until the device has executed all queued work of this stream."""


class StreamDevice(Protocol):
    """A device with streams. Copies are queued in the current stream of the thread."""

    def stream(self) -> Stream:
        """Return a new stream."""

    def event(self) -> StreamEvent:
        """Return a new event."""

    def current(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which `stream` is the current stream."""

    def pinned(self, size_bytes: int) -> Tensor:
        """Return host memory from which the device copies without the CPU."""

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor is in the device's memory."""

    def to_device(self, host: Tensor) -> Tensor:
        """Queue a copy of a pinned tensor to new memory of the device."""

    def to_host(self, tensor: Tensor, host: Tensor) -> None:
        """Queue a copy of a device's tensor to a pinned tensor."""

    def clone(self, tensor: Tensor) -> Tensor:
        """Queue a copy of a device's tensor to new memory of the device."""

    def keep(self, tensor: Tensor, stream: Any) -> None:
        """Reuse a tensor's memory only after the work that is queued in `stream` when it is freed."""

    def capture(self, function: Callable[[Any], Any], batch: Any, stream: Any) -> CapturedGraph:
        """Capture a forward on a batch as a graph.

        Raises:
            RuntimeError: the forward cannot be captured, or the graph returns other results.
        """

    def is_usable(self) -> bool:
        """Return whether a trial operation succeeds: after some errors, every later operation fails too."""

    def memory(self) -> tuple[int, int, int] | None:
        """Return bytes of the device's memory: used, total, and those that this process uses; None if unknown."""
