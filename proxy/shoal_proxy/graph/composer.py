"""Composer: the user's Python code that passes a request through steps.

It runs on a separate event loop and thread, so that computing or blocking code does not delay probes or the drain. Its
calls of steps run on the proxy's loop, like the steps of any graph.
"""

import asyncio
import importlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any, Final, TypeVar

from shoal_proxy.errors import DeadlineExceeded, ModelFailed
from shoal_proxy.graph.canonical import canonical, readable
from shoal_proxy.graph.composed import Steps, client_error, exception_text
from shoal_proxy.graph.graph_request import Ask
from shoal_schema.graphs.composer import declared_signature, read_source
from shoal_schema.graphs.errors import GraphError
from shoal_schema.graphs.tensors import Signature
from shoal_schema.graphs.types import TypedGraph
from shoal_schema.resource.graph import ComposerSpec
from shoal_schema.wire.datatypes import Array

logger = logging.getLogger(__name__)

T = TypeVar("T")
_LOADS_S: Final = 60.0
"""Longest time to load a composer's code: its imports may be large."""
_ANSWERS_S: Final = 5.0
"""Delay of the composer's event loop from which it counts as blocked."""
_LOG_S: Final = 1.0
"""Least time between two logged tracebacks."""
_UNBLOCK: Final = "Await I/O, and run computations in asyncio.to_thread."


class Threads(ThreadPoolExecutor):
    """Executor for `asyncio.to_thread` whose threads end with the process."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Run a function in a thread that is created for the call."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name="composer-work", daemon=True).start()
        return future


class Composer:
    """An instance of the user's composer class, which runs on its own thread."""

    def __init__(self, spec: ComposerSpec, folder: str) -> None:
        self._spec = spec
        self._folder = folder
        self._composer: Any = None
        self._stopped = False
        self._logged_s = -_LOG_S
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(Threads())
        self._thread = threading.Thread(target=self._turn, name="composer", daemon=True)
        self._thread.start()
        self._loading: asyncio.Future[Signature | GraphError] | None = None

    async def load_signature(self) -> Signature:
        """Return the composer's inputs and outputs; load its code if needed.

        Raises:
            GraphError: the code cannot be loaded, or blocks its event loop.
        """
        if self._loading is None:  # once: the import of a module has side effects
            self._loading = asyncio.ensure_future(_elsewhere(self._load(), self._loop))
        try:
            async with asyncio.timeout(_LOADS_S):
                found = await asyncio.shield(self._loading)
        except TimeoutError:
            raise GraphError(self._path, f"its code blocks: it was not loaded within {_LOADS_S:g} s") from None
        if isinstance(found, GraphError):  # a new one: an exception that is raised repeatedly keeps every frame
            raise GraphError(found.path, found.what)
        try:
            async with asyncio.timeout(_ANSWERS_S):
                await _elsewhere(asyncio.sleep(0), self._loop)
        except TimeoutError:
            raise GraphError(
                "composer", f"its code has blocked the event loop for {_ANSWERS_S:g} s. {_UNBLOCK}"
            ) from None
        return found

    async def run(
        self, graph: TypedGraph, inputs: Mapping[str, Array], rows: int, deadline_s: float, call_step: Ask
    ) -> Mapping[str, Array]:
        """Return the outputs of one request's rows.

        Raises:
            ProxyError: a step or the composer's code failed, or the deadline has passed.
        """
        steps = Steps(graph, deadline_s, call_step, asyncio.get_running_loop())
        try:
            # The deadline ends the code even where its steps do not.
            async with asyncio.timeout(max(0.0, steps.left_s)):
                return await _elsewhere(self._run(graph, inputs, rows, steps), self._loop)
        except asyncio.CancelledError:
            # Cancelled by the client, or by the code itself.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise ModelFailed("the composer cancelled itself") from None
        except TimeoutError:
            late = DeadlineExceeded("the composer did not return before the deadline")
            late.may_have_run = True
            raise late from None
        finally:
            steps.end()

    def close(self) -> None:
        """Stop the thread as soon as no code blocks it."""
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._composer = None
        self._stopped = True
        self._loop.stop()

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._stopped:
            try:
                self._loop.run_forever()
            except BaseException:  # a task of the user's code called sys.exit()
                logger.exception("event=composer_task_failed")
        self._loop.close()

    @property
    def _path(self) -> str:
        return "composer.source" if self._spec.source else "composer.importPath"

    async def _load(self) -> Signature | GraphError:
        """Load the composer's code; return an error instead of raising it."""
        try:
            module, name = self._module()
            made = getattr(module, name)()
        except BaseException as error:
            logger.exception("event=composer_failed")
            return GraphError(self._path, f"its code cannot be loaded: {type(error).__name__}: {exception_text(error)}")
        inputs, outputs = (getattr(made, each, None) for each in ("inputs", "outputs"))
        if not asyncio.iscoroutinefunction(getattr(made, "run", None)):
            return GraphError(self._path, f"{name} has no `async def run(self, inputs, steps)`")
        self._composer = made
        try:
            return declared_signature(inputs, outputs, self._path)
        except GraphError as wrong:
            return GraphError(wrong.path, wrong.what)

    def _module(self) -> tuple[ModuleType, str]:
        """Return the module of the composer's code, and the name of its class."""
        if self._spec.source is not None:
            declared = read_source(self._spec.source)
            module = ModuleType("composer")
            sys.modules["composer"] = module  # dataclasses and pickle look their module up
            exec(compile(self._spec.source, "composer.source", "exec"), module.__dict__)
            return module, declared.name
        assert self._spec.import_path is not None
        name, _, member = self._spec.import_path.partition(":")
        # Last, so that a user's file does not shadow a library module of the same name.
        sys.path.append(self._folder)
        return importlib.import_module(name), member

    async def _run(
        self, graph: TypedGraph, inputs: Mapping[str, Array], rows: int, steps: Steps
    ) -> Mapping[str, Array]:
        try:
            answer = await self._composer.run(readable(inputs, graph.request), steps)
            outputs, count = canonical(answer, graph.outputs, frozenset(), "the composer's result")
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if (known := client_error(error, rows)) is None:
                # Log a bug of the code, but not for each client that can cause it.
                now_s = time.monotonic()
                if now_s - self._logged_s >= _LOG_S:
                    self._logged_s = now_s
                    logger.error("event=composer_failed", exc_info=error)
                known = ModelFailed(f"the composer raised {type(error).__name__}: {exception_text(error)}")
            raise known from None
        if count != rows:
            raise ModelFailed(f"the composer returned {count} rows, expected {rows}")
        return outputs


async def _elsewhere(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Run a coroutine on another thread's event loop and return its result.

    A cancellation of the calling task also cancels the coroutine.
    """
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
