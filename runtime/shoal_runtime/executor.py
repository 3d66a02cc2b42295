"""The one thread that touches the device.

Calls run one at a time, in the order they came. `busy_since_s` lets the watchdog see a call that never ends; when the
device is given up, `abandon` answers everybody who waits, although the thread itself may be stuck for ever.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from shoal_runtime.errors import DeviceLost, NotReady
from shoal_runtime.faults import HANDLER_FAULTS, contained, describe

T = TypeVar("T")

MAX_WAITING: Final = 256
"""Calls that may wait; a proxy sends a few ahead, more means a caller without a queue."""


class _Call:
    __slots__ = ("_loop", "begun", "function", "future", "watched")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop, *, watched: bool) -> None:
        self.function = function
        self.future: asyncio.Future[Any] = loop.create_future()
        self.watched = watched
        self.begun = False
        self._loop = loop

    def answer(self, result: Any, error: Exception | None) -> None:
        """Resolve the future. Safe from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._resolve, result, error)
        except RuntimeError:  # the loop is closed: the process is stopping and nobody waits
            return

    def _resolve(self, result: Any, error: Exception | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


class Executor:
    """Run functions on the device's thread.

    The thread is a daemon: a process that must go does not wait for a stuck device.
    """

    def __init__(self) -> None:
        self.busy_since_s: float | None = None
        self.on_death: Callable[[str], None] | None = None
        """Told why, should the thread end although nobody stopped it."""
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._waiting: set[_Call] = set()
        self._abandoned: str | None = None
        self._device_thread = threading.Thread(target=self._run, name="device", daemon=True)
        self._device_thread.start()

    async def call(self, function: Callable[[], T], *, watched: bool = True) -> T:
        """Run `function` on the device's thread, when all earlier calls are done, and return what it returns.

        The watchdog's limit applies where it is ``watched``.

        Raises:
            NotReady: too many calls wait already.
            DeviceLost: the device was given up; it says whether `function` had begun.
            Exception: what `function` raised, an `Escaped` for what is not an `Exception`.
        """
        if self._abandoned is not None:
            raise DeviceLost(self._abandoned, executed=False)
        if len(self._waiting) >= MAX_WAITING:
            raise NotReady(f"{MAX_WAITING} batches wait already")
        call = _Call(function, asyncio.get_running_loop(), watched=watched)
        self._waiting.add(call)
        self._calls.put(call)
        try:
            result: T = await call.future
            return result
        finally:
            self._waiting.discard(call)

    def abandon(self, reason: str) -> None:
        """Fail the call that runs, those that wait and those to come. Safe from any thread."""
        self._abandoned = reason
        for call in tuple(self._waiting):
            call.answer(None, DeviceLost(reason, executed=call.begun))

    def stop(self, timeout_s: float) -> bool:
        """End the thread after the calls that wait; return whether it ended in time."""
        self._calls.put(None)
        self._device_thread.join(timeout_s)
        return not self._device_thread.is_alive()

    def _run(self) -> None:
        try:
            self._serve()
        except HANDLER_FAULTS as error:
            reason = f"the device's thread ended: {describe(error)}"
            self.abandon(reason)
            if self.on_death is not None:
                self.on_death(reason)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            # In this order: a call that `abandon` sees as not begun is never run.
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
                error = contained(caught)
            self.busy_since_s = None
            call.answer(result, error)
            # Hold nothing of a finished batch while waiting for the next one.
            del call, result, error
