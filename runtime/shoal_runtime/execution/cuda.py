"""A CUDA device, as `StreamPlacement` uses it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from shoal_runtime.execution.graph_cache import CapturedGraph

CONTEXT_BYTES: Final = 512 << 20
"""Memory of CUDA itself in each process, about: a process cannot measure it where it shares the device."""


class CudaDevice:  # pragma: cuda
    """One CUDA device (`StreamDevice`)."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # One pool for all graphs: results are copied before the next replay.
        self._graph_memory = torch.cuda.graph_pool_handle()

    def stream(self) -> torch.cuda.Stream:
        """Return a new stream."""
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def event(self) -> torch.cuda.Event:
        """Return a new event, which measures time; a thread that waits for it sleeps."""
        return torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]

    @contextmanager
    def current(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """Yield a context with the device and one of its streams."""
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            yield

    def pinned(self, size_bytes: int) -> Tensor:
        """Return pinned host memory."""
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor is not in host memory."""
        return tensor.device.type != "cpu"

    def to_device(self, host: Tensor) -> Tensor:
        """Queue a copy of a pinned tensor to the device."""
        return host.to(self.device, non_blocking=True)

    def to_host(self, tensor: Tensor, host: Tensor) -> None:
        """Queue a copy of a tensor to a pinned tensor."""
        host.copy_(tensor, non_blocking=True)

    def clone(self, tensor: Tensor) -> Tensor:
        """Queue a dense copy of a tensor in the device's memory."""
        return tensor.clone(memory_format=torch.contiguous_format)

    def keep(self, tensor: Tensor, stream: torch.cuda.Stream) -> None:
        """Reuse a tensor's memory only after the work that is queued in `stream` when it is freed."""
        tensor.record_stream(stream)

    def capture(self, function: Callable[[Any], Any], batch: Any, stream: torch.cuda.Stream) -> CapturedGraph:
        """Capture a forward on a batch as a CUDA graph."""
        return _CudaGraph(function, batch, stream, self._graph_memory)

    def is_usable(self) -> bool:
        """Return whether a trial operation succeeds, or fails only because memory ran out."""
        try:
            torch.zeros(1, device=self.device).add_(1)
            torch.cuda.synchronize(self.device)
        except RuntimeError as error:
            return isinstance(error, torch.OutOfMemoryError)
        return True

    def memory(self) -> tuple[int, int, int] | None:
        """Return bytes of the device's memory: used, total, and those that this process uses; None if unknown."""
        try:
            free, size = torch.cuda.mem_get_info(self.device)
        except RuntimeError:
            return None
        return size - free, size, torch.cuda.memory_reserved(self.device) + CONTEXT_BYTES


class _CudaGraph:  # pragma: cuda
    """CUDA graph of a forward, with its input and output memory.

    Results are overwritten by the next replay.
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
