"""Placement of batches on a CUDA device.

    host rows -> pinned buffer -> device                copy stream, during the forward of the previous batch
    forward, or the replay of a captured graph          compute stream
    device -> pinned buffer -> host arrays              compute stream, then one wait

Pinned buffers are reused. Warm-up captures a graph for each structure and shape of batch; other batches run eagerly.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from shoal_runtime.tensors.library import Library
from shoal_runtime.tensors.torch_tensors import TORCH

logger = logging.getLogger(__name__)


class StreamEvent(Protocol):
    """Event in a CUDA stream, which marks the end of the work queued before it."""

    def synchronize(self) -> None:
        """Wait until the device has executed all work queued before this event."""


@dataclass(slots=True, eq=False)
class _Buffer:
    memory: Tensor
    busy: StreamEvent | None = None


class StagingPool:
    """Pool of reusable buffers in pinned host memory. Thread-safe.

    A buffer is reused once the last copy from it is done. Sizes are powers of two, so that batches of similar size
    share buffers.
    """

    def __init__(self, allocate: Callable[[int], Tensor]) -> None:
        self._allocate = allocate
        self._free: dict[int, list[_Buffer]] = defaultdict(list)
        self._lock = threading.Lock()

    def acquire(self, like: Tensor) -> tuple[Tensor, _Buffer]:
        """Return pinned memory with the shape and type of a tensor, and its buffer, which must be released."""
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
        return view.view(like.shape), buffer

    def release(self, buffer: _Buffer, busy: StreamEvent | None = None) -> None:
        """Return a buffer to the pool; it is reused only after the event `busy`."""
        buffer.busy = busy
        with self._lock:
            self._free[buffer.memory.numel()].append(buffer)


class CapturedGraph(Protocol):
    """CUDA graph of a forward."""

    def replay(self, tensors: list[Tensor]) -> Any:
        """Run the graph on tensors of the captured shapes and types."""


class GraphCache:
    """Cache of CUDA graphs of a forward, by structure and shapes of the batch.

    Args:
        capture: function that captures a forward for a batch as a graph. It returns None if capturing fails.
    """

    def __init__(self, capture: Callable[[Callable[[Any], Any], Any], CapturedGraph | None]) -> None:
        self._capture = capture
        self._graphs: dict[Hashable, CapturedGraph] = {}
        self._allowed = True

    def add(self, function: Callable[[Any], Any], batch: Any) -> None:
        """Capture a CUDA graph of the forward for the form of a batch.

        The form is the structure, shapes and types. After the first failed capture, no further graphs are captured.
        """
        form = batch_form(batch)
        if not self._allowed or form is None or form in self._graphs:
            return
        graph = self._capture(function, batch)
        if graph is not None:
            self._graphs[form] = graph
        else:
            # One failed capture means that the model synchronizes or branches: do not try again.
            self._allowed = False
            self._graphs.clear()

    def run(self, function: Callable[[Any], Any], batch: Any) -> Any:
        """Run the forward on a batch, through its captured graph if there is one.

        A graph is used if it was captured for the structure, shapes and types of the batch.
        """
        form = batch_form(batch) if self._graphs else None
        graph = self._graphs.get(form) if form is not None else None
        if graph is None:
            return function(batch)
        return graph.replay(pytree.tree_leaves(batch))


def batch_form(batch: Any) -> Hashable | None:
    """Return a key made of a batch's structure, shapes and types.

    Returns:
        The key. None if the batch is empty or holds a value that is not a tensor.
    """
    leaves, structure = pytree.tree_flatten(batch)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return None
    return str(structure), tuple((leaf.dtype, tuple(leaf.shape)) for leaf in leaves)


@dataclass(slots=True)
class _Staged:
    batch: Any
    copied: Any


class CudaPlacement:
    """Placement on one CUDA device; forwards are captured as CUDA graphs if `graphs` is set."""

    library: Library = TORCH
    stages_off_loop = True

    def __init__(self, device: torch.device, *, graphs: bool) -> None:  # pragma: cuda
        self.device = device
        self._compute = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copy = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._staging = StagingPool(lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True))
        self._graphs = GraphCache(self._capture) if graphs else None
        # One pool for all graphs: results are fetched before the next replay.
        self._graph_memory = torch.cuda.graph_pool_handle()

    def stage(self, batch: Any) -> _Staged:  # pragma: cuda
        """Start to copy a batch's CPU tensors to the device, on the copy stream."""
        with torch.cuda.device(self.device), torch.cuda.stream(self._copy):
            moved = pytree.tree_map_only(torch.Tensor, self._to_device, batch)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._copy)
        return _Staged(moved, copied)

    def _to_device(self, tensor: Tensor) -> Tensor:  # pragma: cuda
        if tensor.device.type != "cpu":
            return tensor
        pinned, buffer = self._staging.acquire(tensor)
        pinned.copy_(tensor)
        moved = pinned.to(self.device, non_blocking=True)
        # The allocator must not reuse this memory while the compute stream still reads it.
        moved.record_stream(self._compute)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(self._copy)
        self._staging.release(buffer, copied)
        return moved

    @contextmanager
    def active(self) -> Iterator[None]:  # pragma: cuda
        """Yield a context without gradients, on the compute stream."""
        with torch.inference_mode(), torch.cuda.device(self.device), torch.cuda.stream(self._compute):
            yield

    def forward(self, function: Callable[[Any], Any], batch: _Staged) -> Any:  # pragma: cuda
        """Run the function, or its captured graph, once the batch is copied."""
        self._compute.wait_event(batch.copied)
        return function(batch.batch) if self._graphs is None else self._graphs.run(function, batch.batch)

    def warm(self, function: Callable[[Any], Any], batch: _Staged) -> None:  # pragma: cuda
        """Run the function once, then capture it for batches like this one, if possible."""
        self._compute.wait_event(batch.copied)
        function(batch.batch)
        self._compute.synchronize()
        if self._graphs is not None:
            self._graphs.add(function, batch.batch)

    def measure(self, function: Callable[[Any], Any], batch: _Staged) -> tuple[float, Any]:  # pragma: cuda
        """Run the function on an idle device; return the seconds until its end, and the result."""
        self._compute.wait_event(batch.copied)
        self._compute.synchronize()
        start = time.perf_counter()
        result = self.forward(function, batch)
        self._compute.synchronize()
        return time.perf_counter() - start, result

    def fetch(self, tensors: list[Tensor]) -> list[Tensor]:  # pragma: cuda
        """Copy tensors to the host through pinned memory, with one wait for all."""
        pending: list[tuple[Tensor, _Buffer | None]] = []
        for tensor in tensors:
            if tensor.device.type == "cpu":
                pending.append((tensor, None))
                continue
            host, buffer = self._staging.acquire(tensor)
            host.copy_(tensor, non_blocking=True)
            pending.append((host, buffer))
        self._compute.synchronize()
        fetched = []
        for result, held in pending:
            # A result outlives its buffer, so it is copied out.
            fetched.append(result if held is None else result.clone())
            if held is not None:
                self._staging.release(held)
        return fetched

    def is_lost(self, error: BaseException) -> bool:  # pragma: cuda
        """Return whether the CUDA context is unusable after an error.

        A trial operation decides: after some CUDA errors, every later operation fails too.
        """
        if isinstance(error, torch.OutOfMemoryError):
            return False
        try:
            torch.zeros(1, device=self.device).add_(1)
            torch.cuda.synchronize(self.device)
        except RuntimeError as probe:
            return not isinstance(probe, torch.OutOfMemoryError)
        return False

    def memory(self) -> tuple[int, int] | None:  # pragma: cuda
        """Return used and total bytes of the device's memory; None if the device does not report them."""
        try:
            free, size = torch.cuda.mem_get_info(self.device)
        except RuntimeError:
            return None
        return size - free, size

    def _capture(self, function: Callable[[Any], Any], batch: Any) -> CapturedGraph | None:  # pragma: cuda
        try:
            return _CudaGraph(function, batch, self._compute, self._graph_memory)
        except RuntimeError as error:
            if self.is_lost(error):
                raise
            reason = str(error).strip().splitlines()[0]
            logger.info("event=cuda_graphs_off reason=%s", reason)
            return None


class _CudaGraph:  # pragma: cuda
    """CUDA graph of a forward, with its input and output memory.

    Results are valid until the next replay.
    """

    def __init__(self, function: Callable[[Any], Any], batch: Any, stream: torch.cuda.Stream, memory: Any) -> None:
        leaves, structure = pytree.tree_flatten(batch)
        # A graph reads fixed addresses, so it owns its inputs.
        self._inputs = [leaf.clone() for leaf in leaves]
        own = pytree.tree_unflatten(self._inputs, structure)
        self._graph = torch.cuda.CUDAGraph()
        # Errors of this thread only: other threads may stage the next batch during the capture.
        capture = torch.cuda.graph(self._graph, pool=memory, stream=stream, capture_error_mode="thread_local")
        with capture:
            self._outputs = function(own)
        # A replay on random numbers must return what the forward itself does.
        for tensor in self._inputs:
            if tensor.is_floating_point():
                tensor.normal_()
        expected = pytree.tree_leaves(function(own))
        self._graph.replay()
        for want, got in zip(expected, pytree.tree_leaves(self._outputs), strict=True):
            if not isinstance(want, torch.Tensor):
                continue
            if want.is_floating_point():
                alike = torch.allclose(want.float(), got.float(), rtol=1e-2, atol=1e-2, equal_nan=True)
            else:
                alike = torch.equal(want, got)
            if not alike:
                raise RuntimeError("a replay of the CUDA graph returns different results from the model")

    def replay(self, tensors: list[Tensor]) -> Any:
        for own, tensor in zip(self._inputs, tensors, strict=True):
            own.copy_(tensor, non_blocking=True)
        self._graph.replay()
        return self._outputs
