"""Placement of batches on a device that executes work in streams.

    host rows -> pinned buffer -> device                staging stream, during the forward of the previous batch
    forward, or the replay of a captured graph;
    copy of the results in the device's memory          compute stream
    device -> pinned buffer -> host arrays              fetching stream, during the forward of the next batch

`forward` and `fetch` only queue work. So the next batch is queued before the device has executed this one, and the
device is not idle between them. Results are copied within the compute stream first, because the next forward may
overwrite the model's own outputs, as a captured graph does.

Pinned buffers are reused. Warm-up captures a graph for each structure and shape of batch; other batches run eagerly.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from shoal_runtime.execution.graph_cache import CapturedGraph, GraphCache
from shoal_runtime.execution.staging import HostCopy, StagingPool
from shoal_runtime.execution.streams import StreamDevice, StreamEvent
from shoal_runtime.tensors.fetch import Fetch
from shoal_runtime.tensors.library import Library
from shoal_runtime.tensors.torch_tensors import TORCH

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Staged:
    batch: Any
    copied: StreamEvent


class StreamFetch:
    """Copies of results to host memory, queued on the device.

    Args:
        copies: tensors in host memory, or copies into pinned buffers.
        pool: pool to which the buffers are returned.
        started: event at the start of the forward.
        computed: event at the end of the forward.
        fetched: event at the end of the copies.
    """

    ready = False

    def __init__(
        self,
        copies: Sequence[Tensor | HostCopy],
        pool: StagingPool,
        started: StreamEvent,
        computed: StreamEvent,
        fetched: StreamEvent,
    ) -> None:
        self.device_s: float | None = None
        self._copies = copies
        self._pool = pool
        self._started = started
        self._computed = computed
        self._fetched = fetched

    def wait(self) -> list[Tensor]:
        """Wait until the copies are complete, and return the tensors."""
        self._fetched.synchronize()
        self.device_s = self._started.elapsed_time(self._computed) / 1000
        tensors = []
        for copy in self._copies:
            if isinstance(copy, Tensor):
                tensors.append(copy)
                continue
            # A result outlives its buffer, so it is copied out.
            tensors.append(copy.view.clone())
            self._pool.release(copy)
        return tensors


class StreamPlacement:
    """Placement on a device with streams; forwards are captured as graphs if `graphs` is set."""

    library: Library = TORCH
    stages_off_loop = True

    def __init__(self, device: StreamDevice, *, graphs: bool) -> None:
        self._device = device
        self._staging_stream = device.stream()
        self._compute = device.stream()
        self._fetching = device.stream()
        self._staging = StagingPool(device.pinned)
        # Apart: the device's thread must not wait until the input of a later batch has left its buffer.
        self._results = StagingPool(device.pinned)
        self._graphs = GraphCache(self._capture) if graphs else None
        self._started = device.event()

    def stage(self, batch: Any) -> _Staged:
        """Queue the copy of a batch's CPU tensors to the device."""
        with self._device.current(self._staging_stream):
            moved = pytree.tree_map_only(torch.Tensor, self._to_device, batch)
            copied = self._device.event()
            copied.record(self._staging_stream)
        return _Staged(moved, copied)

    def _to_device(self, tensor: Tensor) -> Tensor:
        if self._device.holds(tensor):
            return tensor
        copy = self._staging.acquire(tensor)
        copy.view.copy_(tensor)
        moved = self._device.to_device(copy.view)
        # The allocator must not reuse this memory while the compute stream still reads it.
        self._device.keep(moved, self._compute)
        copied = self._device.event()
        copied.record(self._staging_stream)
        self._staging.release(copy, copied)
        return moved

    @contextmanager
    def active(self) -> Iterator[None]:
        """Yield a context without gradients, on the compute stream."""
        with torch.inference_mode(), self._device.current(self._compute):
            yield

    def forward(self, function: Callable[[Any], Any], batch: _Staged) -> Any:
        """Queue the function, or its captured graph, after the copy of the batch."""
        self._compute.wait_event(batch.copied)
        self._started = self._device.event()
        self._started.record(self._compute)
        return function(batch.batch) if self._graphs is None else self._graphs.run(function, batch.batch)

    def warm(self, function: Callable[[Any], Any], batch: _Staged) -> None:
        """Run the function once, then capture it for batches like this one, if possible."""
        self._compute.wait_event(batch.copied)
        function(batch.batch)
        self._compute.synchronize()
        if self._graphs is not None:
            self._graphs.add(function, batch.batch)

    def measure(self, function: Callable[[Any], Any], batch: _Staged) -> tuple[float, Any]:
        """Run the function on an idle device; return the seconds until its end, and the result."""
        self._compute.wait_event(batch.copied)
        self._compute.synchronize()
        start = time.perf_counter()
        result = self.forward(function, batch)
        self._compute.synchronize()
        return time.perf_counter() - start, result

    def fetch(self, tensors: list[Tensor]) -> Fetch:
        """Queue the copies of the last forward's results to the host, through pinned memory."""
        device = self._device
        own = [device.clone(tensor) if device.holds(tensor) else tensor for tensor in tensors]
        computed, fetched = device.event(), device.event()
        computed.record(self._compute)
        self._fetching.wait_event(computed)
        copies: list[Tensor | HostCopy] = []
        with device.current(self._fetching):
            for tensor in own:
                if not device.holds(tensor):
                    copies.append(tensor)
                    continue
                copy = self._results.acquire(tensor)
                device.to_host(tensor, copy.view)
                device.keep(tensor, self._fetching)
                copies.append(copy)
            fetched.record(self._fetching)
        return StreamFetch(copies, self._results, self._started, computed, fetched)

    def is_lost(self, error: BaseException) -> bool:
        """Return whether the device is unusable after an error."""
        return not isinstance(error, torch.OutOfMemoryError) and not self._device.is_usable()

    def memory(self) -> tuple[int, int, int] | None:
        """Return bytes of the device's memory: used, total, and those that this process uses; or None."""
        return self._device.memory()

    def _capture(self, function: Callable[[Any], Any], batch: Any) -> CapturedGraph | None:
        try:
            return self._device.capture(function, batch, self._compute)
        except RuntimeError as error:
            if self.is_lost(error):
                raise
            logger.info("event=cuda_graphs_off reason=%s", str(error).strip().splitlines()[0])
            return None
