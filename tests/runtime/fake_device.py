"""A device with streams whose work runs later, in another thread, in a random order that the streams allow.

It has virtual time. Each thread of the host has a clock, and so has each stream. A call that queues work takes
`Latencies.launch_s` of the thread. Work starts when its stream has ended the work before and the call has queued it. A
thread that waits for an event continues at the event's time. So the times depend on what waits for what, and not on
this machine.
"""

import heapq
import math
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Work = Callable[[], object]


@dataclass(frozen=True)
class Latencies:
    """Virtual time of what the device and its driver do, apart from kernels."""

    launch_s: float = 0.0
    """A call that queues work, an event, or a wait for one."""
    copy_s: float = 0.0
    """A copy from or to the host."""
    wake_s: float = 0.0
    """From an event until the thread that waits for it runs."""


class OnDevice(Tensor):
    """A tensor in the memory of the device."""


class DeviceFault(RuntimeError):
    """What every call raises after work has failed, as with CUDA."""


class FakeStream:
    def __init__(self, device: "FakeDevice") -> None:
        self._device = device
        self.queued: deque[tuple[str, Any, float]] = deque()
        self.now_s = 0.0
        """Time at which all executed work has ended."""

    def wait_event(self, event: "FakeEvent") -> None:
        self._device.add(self, "wait", (event, event.recorded))

    def synchronize(self) -> None:
        event = self._device.event()
        event.record(self)
        event.synchronize()


class FakeEvent:
    def __init__(self, device: "FakeDevice") -> None:
        self._device = device
        self.recorded = 0
        self.executed = 0
        self.at_s = 0.0

    def record(self, stream: FakeStream) -> None:
        self.recorded += 1
        self._device.add(stream, "record", (self, self.recorded))

    def synchronize(self) -> None:
        self._device.wait_until(lambda: self.executed >= self.recorded)
        if self.at_s > self._device.host_s:
            self._device.reach(self.at_s + self._device.latencies.wake_s)

    def elapsed_time(self, end: "FakeEvent") -> float:
        return 1000 * (end.at_s - self.at_s)


class FakeGraph:
    """A captured forward: it reads and writes the same memory in each replay."""

    def __init__(self, device: "FakeDevice", function: Callable[[Any], Any], batch: Any) -> None:
        leaves, self._structure = pytree.tree_flatten(batch)
        self._device, self._function = device, function
        self._inputs = [leaf.clone() for leaf in leaves]
        self._outputs: Any = None

    def replay(self, tensors: list[Tensor]) -> Any:
        for own, tensor in zip(self._inputs, tensors, strict=True):
            self._device.run(partial(own.copy_, tensor))
        with self._device.writing_to(self._outputs):
            self._outputs = self._function(pytree.tree_unflatten(self._inputs, self._structure))
        return self._outputs


class FakeDevice:
    """A device (`StreamDevice`) that executes queued work in a thread.

    Until it executes a copy, the target holds wrong numbers.

    Args:
        seed: seed of the order in which streams take turns.
        latencies: virtual time of calls and copies.
    """

    def __init__(self, seed: int = 0, latencies: Latencies = Latencies()) -> None:
        self.latencies = latencies
        self.kernel_spans: list[tuple[float, float]] = []
        """Start and end of each kernel, in the order of execution."""
        self.shared_buffers = 0
        """Copies from or to pinned memory that another copy was still using."""
        self._copied_until_s: dict[int, float] = {}
        """End of the last copy by address of pinned memory; infinite until it is executed."""
        self._host = threading.local()
        self._random = random.Random(seed)
        self._changed = threading.Condition()
        self._streams: list[FakeStream] = []
        self._current = threading.local()
        self._stopped = False
        self.fault: BaseException | None = None
        self.most_queued = 0
        """Most kernels queued or running at a time."""
        self.kernels = 0
        self.graphs = 0
        self._thread = threading.Thread(target=self._execute, name="fake-device", daemon=True)
        self._thread.start()

    # The interface of a device.

    def stream(self) -> FakeStream:
        self._streams.append(FakeStream(self))
        return self._streams[-1]

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    @contextmanager
    def current(self, stream: FakeStream) -> Iterator[None]:
        before, self._current.stream = getattr(self._current, "stream", None), stream
        try:
            yield
        finally:
            self._current.stream = before

    def pinned(self, size_bytes: int) -> Tensor:
        return torch.zeros(size_bytes, dtype=torch.uint8)

    def holds(self, tensor: Tensor) -> bool:
        return isinstance(tensor, OnDevice)

    def to_device(self, host: Tensor) -> Tensor:
        moved = self.empty(host)
        self._copy(host, lambda: moved.copy_(host), free_since_s=self.host_s)
        return moved

    def to_host(self, tensor: Tensor, host: Tensor) -> None:
        # Another thread has released this memory, perhaps at a later virtual time.
        self._copy(host, lambda: host.copy_(tensor.as_subclass(Tensor)), free_since_s=sys.float_info.max)

    def clone(self, tensor: Tensor) -> Tensor:
        copy = self.empty(tensor)
        self.run(lambda: copy.copy_(tensor))
        return copy

    def keep(self, tensor: Tensor, stream: FakeStream) -> None:
        pass

    def capture(self, function: Callable[[Any], Any], batch: Any, stream: FakeStream) -> FakeGraph:
        self.graphs += 1
        return FakeGraph(self, function, batch)

    def is_usable(self) -> bool:
        return self.fault is None

    def memory(self) -> tuple[int, int, int] | None:
        return None

    # What models and tests call.

    def empty(self, like: Tensor) -> Tensor:
        """Return memory of the device with wrong numbers in it."""
        if reused := getattr(self._current, "reused", None):
            found: Tensor = reused.pop(0)
            return found
        return torch.full_like(like, 77).as_subclass(OnDevice)

    @contextmanager
    def writing_to(self, outputs: Any) -> Iterator[None]:
        """Let kernels write to these tensors again, as a replay of a graph does."""
        self._current.reused = [] if outputs is None else pytree.tree_leaves(outputs)
        yield
        self._current.reused = []

    def kernel(self, compute: Callable[[Tensor], Tensor], tensor: Tensor, duration_s: float = 1.0) -> Tensor:
        """Queue an elementwise computation, and return its output, in memory of the device."""
        output = self.empty(tensor)
        with self._changed:
            self.kernels += 1
            self.most_queued = max(self.most_queued, self.kernels)

        def run() -> None:
            output.copy_(compute(tensor))
            with self._changed:
                self.kernels -= 1

        self.add(self._current.stream, "kernel", (run, duration_s))
        return output

    def run(self, work: Work, duration_s: float = 0.0) -> None:
        """Queue work in the current stream."""
        self.add(self._current.stream, "run", (work, duration_s))

    def add(self, stream: FakeStream, kind: str, what: Any) -> None:
        self.reach(self.host_s + self.latencies.launch_s)
        with self._changed:
            if self.fault is not None:
                raise DeviceFault("an earlier kernel failed")
            stream.queued.append((kind, what, self.host_s))
            self._changed.notify_all()

    @property
    def host_s(self) -> float:
        """The time of this thread of the host."""
        time_s: float = getattr(self._host, "now_s", 0.0)
        return time_s

    def reach(self, time_s: float) -> None:
        """Continue this thread of the host at a time, unless it is later already."""
        self._host.now_s = max(self.host_s, time_s)

    def _copy(self, host: Tensor, work: Work, *, free_since_s: float) -> None:
        """Queue a copy from or to pinned memory, whose last copy must have ended."""
        memory, stream = host.untyped_storage().data_ptr(), self._current.stream
        self.shared_buffers += self._copied_until_s.get(memory, 0.0) > free_since_s
        self._copied_until_s[memory] = math.inf

        def run() -> None:
            work()
            self._copied_until_s[memory] = stream.now_s + self.latencies.copy_s

        self.run(run, self.latencies.copy_s)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: condition() or self.fault is not None, timeout=30):
                raise AssertionError("the device never came this far")
            if self.fault is not None:
                raise DeviceFault("an earlier kernel failed")

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()

    # The device itself.

    def _execute(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or (self.fault is None and bool(self._runnable())))
                if self._stopped:
                    return
                stream = self._random.choice(self._runnable())
                kind, what, queued_s = stream.queued.popleft()
            stream.now_s = max(stream.now_s, queued_s)
            try:
                self._perform(stream, kind, what)
            except BaseException as error:  # a kernel may raise anything
                self.fault = error
            with self._changed:
                self._changed.notify_all()

    def _runnable(self) -> list[FakeStream]:
        return [
            stream
            for stream in self._streams
            if stream.queued
            and not (stream.queued[0][0] == "wait" and stream.queued[0][1][0].executed < stream.queued[0][1][1])
        ]

    def _perform(self, stream: FakeStream, kind: str, what: Any) -> None:
        if kind in ("run", "kernel"):
            work, duration_s = what
            with torch.inference_mode():
                work()
            if kind == "kernel":
                self.kernel_spans.append((stream.now_s, stream.now_s + duration_s))
            stream.now_s += duration_s
        elif kind == "record":
            event, number = what
            event.executed, event.at_s = number, stream.now_s
        else:
            stream.now_s = max(stream.now_s, what[0].at_s)


class TimedSlots(threading.BoundedSemaphore):
    """A semaphore whose `acquire` ends at the time of the earliest `release` that is left, on the host's clocks."""

    def __init__(self, device: FakeDevice, value: int) -> None:
        super().__init__(value)
        self._device = device
        self._released_s = [0.0] * value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        acquired = super().acquire(blocking, timeout)
        if acquired:
            self._device.reach(heapq.heappop(self._released_s))
        return acquired

    def release(self, n: int = 1) -> None:
        heapq.heappush(self._released_s, self._device.host_s)
        super().release(n)
