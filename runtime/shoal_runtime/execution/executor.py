"""Executor of all device work in one thread.

Calls run one at a time, in order of arrival. The watchdog reads `busy_since_s` to detect a call that does not end. When
the device is lost, `abandon` fails all calls, although the thread itself may be stuck.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from shoal_runtime.errors import DeviceLost, NotReady
from shoal_runtime.faults import HANDLER_FAULTS, as_exception, describe

T = TypeVar("T")

MAX_WAITING: Final = 256
"""Calls that may wait. A proxy sends a few ahead; more means a client without a queue."""


class _Call:
    __slots__ = ("_loop", "begun", "function", "future", "watched")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop, *, watched: bool) -> None:
        self.function = function
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
    """Executor that runs functions on the device's thread.

    The thread is a daemon, so the process can end while the device is stuck.
    """

    def __init__(self) -> None:
        self.busy_since_s: float | None = None
        self.on_death: Callable[[str], None] | None = None
        """Receives the reason if the thread ends without `stop`."""
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._waiting: set[_Call] = set()
        self._abandoned: str | None = None
        self._device_thread = threading.Thread(target=self._run, name="device", daemon=True)
        self._device_thread.start()

    async def call(self, function: Callable[[], T], *, watched: bool = True) -> T:
        """Run `function` on the device's thread, and return its result.

        Calls run one at a time, in order of arrival.

        Args:
            function: function to run.
            watched: whether the watchdog's time limit applies.

        Raises:
            NotReady: too many calls are waiting.
            DeviceLost: the device was lost; the error states whether `function` had begun.
            Exception: `function` raised it.
            EscapedException: `function` raised an exception that would end the thread, such as SystemExit; it is the
                cause.
        """
        if self._abandoned is not None:
            raise DeviceLost(self._abandoned, executed=False)
        # A proxy has a queue of its own; a client without one must not fill the memory here.
        if len(self._waiting) >= MAX_WAITING:
            raise NotReady(f"{MAX_WAITING} batches are waiting already")
        call = _Call(function, asyncio.get_running_loop(), watched=watched)
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
        """End the thread after all waiting calls; return whether it ended in time."""
        self._calls.put(None)
        self._device_thread.join(timeout_s)
        return not self._device_thread.is_alive()

    def _run(self) -> None:
        try:
            while (call := self._calls.get()) is not None:
                # Set before the check: a call that `abandon` sees as not begun never runs.
                call.begun = True
                if self._abandoned is not None:
                    continue
                if call.watched:
                    self.busy_since_s = time.monotonic()
                result: Any = None
                error: Exception | None = None
                try:
                    result = call.function()
                except HANDLER_FAULTS as caught:
                    error = as_exception(caught)
                self.busy_since_s = None
                call.resolve(result, error)
                # Keep no memory of a finished batch while waiting for the next.
                del call, result, error
        except HANDLER_FAULTS as error:
            reason = f"the device's thread ended: {describe(error)}"
            self.abandon(reason)
            if self.on_death is not None:
                self.on_death(reason)
