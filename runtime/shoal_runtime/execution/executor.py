"""Executor of all device work in one thread.

Work is launched one call at a time, in order of arrival. A device that runs by itself, such as a GPU, executes launched
work in that order. Meanwhile the thread launches the next call, so that the device is never idle between two batches.
A second thread waits for results, in order.

The watchdog reads `busy_since_s` to detect work that does not end. When the device is lost, `abandon` fails all calls,
although the threads themselves may be stuck.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from shoal_runtime.errors import DeviceLost, NotReady
from shoal_runtime.faults import HANDLER_FAULTS, as_exception, describe

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MAX_WAITING: Final = 256
"""Calls that may wait. A proxy sends a few ahead; more means a client without a queue."""
MAX_LAUNCHED: Final = 2
"""Calls launched and not complete: one that the device executes, and the next one."""


class Pending(Protocol[T_co]):
    """Work that was launched on the device."""

    @property
    def ready(self) -> bool:
        """Whether `wait` returns at once."""

    def wait(self) -> T_co:
        """Wait until the device has executed the work, and return its result."""


class _Done:
    """Work that is complete."""

    ready = True

    def __init__(self, result: Any) -> None:
        self._result = result

    def wait(self) -> Any:
        return self._result


class _Call:
    __slots__ = ("_loop", "begun", "future", "launch", "watched")

    def __init__(self, launch: Callable[[], Pending[Any]], loop: asyncio.AbstractEventLoop, *, watched: bool) -> None:
        self.launch = launch
        self.future: asyncio.Future[Any] = loop.create_future()
        self.watched = watched
        self.begun = False
        self._loop = loop

    def resolve(self, result: Any, error: Exception | None) -> None:
        """Set the result or the error of the future. Thread-safe."""

        def resolve() -> None:
            if self.future.done():
                return
            if error is None:
                self.future.set_result(result)
            else:
                self.future.set_exception(error)

        with suppress(RuntimeError):  # the loop is closed: the process is stopping and nothing awaits the future
            self._loop.call_soon_threadsafe(resolve)


class Executor:
    """Executor that launches work on the device's thread, and waits for its results.

    Its threads are daemons, so the process can end while the device is stuck.

    Args:
        semaphore: class of the semaphore that limits launched calls.
    """

    def __init__(self, semaphore: Callable[[int], threading.Semaphore] = threading.BoundedSemaphore) -> None:
        self.busy_since_s: float | None = None
        """Since when the device has executed the oldest watched call that is not complete; None without one."""
        self.on_death: Callable[[str], None] | None = None
        """Receives the reason if a thread ends without `stop`."""
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._launched: SimpleQueue[tuple[_Call, Pending[Any]] | None] = SimpleQueue()
        self._waiting: set[_Call] = set()
        self._abandoned: str | None = None
        self._slots = semaphore(MAX_LAUNCHED)
        self._busy_lock = threading.Lock()
        self._watched = 0
        """Watched calls that have begun and are not complete."""
        self._device_thread = threading.Thread(target=self._launch_calls, name="device", daemon=True)
        self._results_thread = threading.Thread(target=self._await_results, name="results", daemon=True)
        self._device_thread.start()

    async def call(self, function: Callable[[], T], *, watched: bool = True) -> T:
        """Run `function` on the device's thread, and return its result.

        Args:
            function: function to run.
            watched: whether the watchdog's time limit applies.

        Raises:
            NotReady, DeviceLost, Exception, EscapedException: as in `launch`.
        """
        return await self._submit(lambda: _Done(function()), watched=watched)

    async def launch(self, function: Callable[[], Pending[T]]) -> T:
        """Launch work on the device's thread, and return its result once the device has executed it.

        Calls are launched one at a time, in order of arrival, at most `MAX_LAUNCHED` ahead of their results.

        Raises:
            NotReady: too many calls are waiting.
            DeviceLost: the device was lost; the error states whether `function` had begun.
            Exception: `function`, or `wait` of its result, raised it.
            EscapedException: one of them raised an exception that would end the thread, such as SystemExit; it is the
                cause.
        """
        return await self._submit(function, watched=True)

    async def _submit(self, launch: Callable[[], Pending[T]], *, watched: bool) -> T:
        if self._abandoned is not None:
            raise DeviceLost(self._abandoned, executed=False)
        # A proxy has a queue of its own; a client without one must not fill the memory here.
        if len(self._waiting) >= MAX_WAITING:
            raise NotReady(f"{MAX_WAITING} batches are waiting already")
        call = _Call(launch, asyncio.get_running_loop(), watched=watched)
        self._waiting.add(call)
        self._calls.put(call)
        try:
            result: T = await call.future
            return result
        finally:
            self._waiting.discard(call)

    def abandon(self, reason: str) -> None:
        """Fail running, waiting and later calls with DeviceLost. Thread-safe."""
        self._abandoned = reason
        for call in tuple(self._waiting):
            call.resolve(None, DeviceLost(reason, executed=call.begun))

    def stop(self, timeout_s: float) -> bool:
        """End the threads after all waiting calls; return whether they ended in time."""
        end_s = time.monotonic() + timeout_s
        self._calls.put(None)
        self._device_thread.join(timeout_s)
        # Without the device's thread, no result follows.
        if not self._device_thread.is_alive() and self._results_thread.is_alive():
            self._launched.put(None)
            self._results_thread.join(max(0.0, end_s - time.monotonic()))
        return not (self._device_thread.is_alive() or self._results_thread.is_alive())

    def _launch_calls(self) -> None:
        with self._death_reported("the device's thread"):
            while (call := self._calls.get()) is not None:
                self._slots.acquire()
                # Set before the check: a call that `abandon` sees as not begun never runs.
                call.begun = True
                if self._abandoned is not None:
                    self._slots.release()
                    continue
                self._launch(call)
                # Keep no memory of a finished batch while waiting for the next.
                del call

    def _launch(self, call: _Call) -> None:
        if call.watched:
            with self._busy_lock:
                self._watched += 1
                if self.busy_since_s is None:
                    self.busy_since_s = time.monotonic()
        try:
            pending = call.launch()
        except HANDLER_FAULTS as caught:
            self._complete(call, None, as_exception(caught))
            return
        if pending.ready:
            self._wait(call, pending)
            return
        # The thread is started when first needed: results on a CPU are ready.
        if self._results_thread.ident is None:
            self._results_thread.start()
        self._launched.put((call, pending))

    def _await_results(self) -> None:
        with self._death_reported("the thread that waits for results"):
            while (launched := self._launched.get()) is not None:
                self._wait(*launched)
                del launched

    def _wait(self, call: _Call, pending: Pending[Any]) -> None:
        result: Any = None
        error: Exception | None = None
        try:
            result = pending.wait()
        except HANDLER_FAULTS as caught:
            error = as_exception(caught)
        self._complete(call, result, error)

    def _complete(self, call: _Call, result: Any, error: Exception | None) -> None:
        if call.watched:
            with self._busy_lock:
                self._watched -= 1
                # The device begins the next batch when it has ended the one before.
                self.busy_since_s = time.monotonic() if self._watched else None
        self._slots.release()
        call.resolve(result, error)

    @contextmanager
    def _death_reported(self, thread: str) -> Iterator[None]:
        """Fail all calls, and report the reason, if the thread ends with an exception."""
        try:
            yield
        except HANDLER_FAULTS as error:
            reason = f"{thread} ended: {describe(error)}"
            self.abandon(reason)
            if self.on_death is not None:
                self.on_death(reason)
