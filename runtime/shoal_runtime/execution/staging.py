"""Reusable buffers in pinned host memory, for copies to and from a device."""

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from shoal_runtime.execution.streams import StreamEvent


@dataclass(slots=True, eq=False)
class _Buffer:
    memory: Tensor
    busy: StreamEvent | None = None
    """The end of the last copy from or to the buffer; None if it is complete."""


@dataclass(slots=True, frozen=True, eq=False)
class HostCopy:
    """A tensor in a pinned buffer, which must be released."""

    view: Tensor
    buffer: _Buffer


class StagingPool:
    """Pool of reusable buffers in pinned host memory. Thread-safe.

    A buffer is reused once the last copy from or to it is done. Sizes are powers of two, so that batches of similar
    size share buffers.
    """

    def __init__(self, allocate: Callable[[int], Tensor]) -> None:
        self._allocate = allocate
        self._free: dict[int, list[_Buffer]] = defaultdict(list)
        self._lock = threading.Lock()

    def acquire(self, like: Tensor) -> HostCopy:
        """Return pinned memory with the shape and type of a tensor."""
        needed = max(1, like.numel() * like.element_size())
        # Rounded up to a power of two.
        size = 1 << (needed - 1).bit_length()
        with self._lock:
            free = self._free[size]
            buffer = free.pop(0) if free else None
        if buffer is None:
            buffer = _Buffer(self._allocate(size))
        elif buffer.busy is not None:
            # The copy of an earlier batch may still read it.
            buffer.busy.synchronize()
            buffer.busy = None
        # The start of the buffer, seen as the tensor's type and shape.
        view = buffer.memory[: like.numel() * like.element_size()].view(like.dtype)
        return HostCopy(view.view(like.shape), buffer)

    def release(self, copy: HostCopy, busy: StreamEvent | None = None) -> None:
        """Return a buffer to the pool; it is reused only after the event `busy`."""
        copy.buffer.busy = busy
        with self._lock:
            self._free[copy.buffer.memory.numel()].append(copy.buffer)
