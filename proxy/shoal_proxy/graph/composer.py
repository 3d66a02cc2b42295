"""A composer: Python of the user's that takes a request through the steps.

It runs on a loop and a thread of its own, so that code that computes or blocks holds up neither probes nor the drain;
what it asks of steps is asked on the proxy's loop, by the clients that any graph has.
"""

import asyncio
import importlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from types import ModuleType
from typing import Any, Final, TypeVar

from shoal_proxy.errors import (
    MOST_WORDS,
    DeadlineExceeded,
    InvalidRequest,
    ModelFailed,
    ProxyError,
    RowsFailed,
    StepFailed,
)
from shoal_proxy.graph.canonical import canonical
from shoal_proxy.graph.frame import Ask
from shoal_schema.graphs.composer import declared_signature, read_source
from shoal_schema.graphs.faults import GraphError
from shoal_schema.graphs.plan import Step
from shoal_schema.graphs.tensors import Signature
from shoal_schema.graphs.types import Typed
from shoal_schema.resource.graph import ComposerSpec
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.row_errors import RowError

logger = logging.getLogger(__name__)

T = TypeVar("T")
_ANSWERS_S: Final = 5.0
"""How long its loop may be held up before it counts as blocked."""
_LOG_S: Final = 1.0
_UNBLOCK: Final = "await what waits, and compute in asyncio.to_thread"


class Refused(Exception):
    """Raised by a composer whose caller is wrong: one row of the request, or all of it."""

    def __init__(self, message: str, *, row: int | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.row = row if type(row) is int else None
        self.status = status if type(status) is int and 400 <= status <= 499 else 400


class Failed(Exception):
    """Raised where a step fails; a composer that does not catch it fails likewise, with the step's status.

    Attributes:
        step: its name.
        status: of the answer, as HTTP has it.
        rows: numbers of the rows that failed alone, among those that the step was asked; empty: all did.
    """

    def __init__(self, step: str, error: ProxyError) -> None:
        super().__init__(error.message)
        self.step = step
        self.status = error.status
        self.rows = tuple(each.row for each in error.errors) if isinstance(error, RowsFailed) else ()
        self.error = error


class Steps:
    """The steps, as a composer asks them for one request: ``await steps.NAME(input=array)`` gives a dict of arrays."""

    Refused = Refused
    Failed = Failed

    def __init__(self, graph: Typed, deadline_s: float, ask: Ask, loop: asyncio.AbstractEventLoop) -> None:
        self._graph = graph
        self._deadline_s = deadline_s
        self._ask = ask
        self._loop = loop
        self._plan = {step.name: step for step in graph.plan.steps}
        self._under_way: set[Future[Mapping[str, Array]]] = set()
        self._ended = False

    @property
    def left_s(self) -> float:
        """Return the seconds that are left until the caller stops waiting."""
        return self._deadline_s - time.monotonic()

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, dict[str, Array]]]:
        """Return what asks the step of this name."""
        plan = self.__dict__.get("_plan", {})
        if name not in plan:
            raise AttributeError(f"there is no step {name!r}; there are {', '.join(plan)}")

        async def ask(*unnamed: Any, **inputs: Any) -> dict[str, Array]:
            if unnamed:
                wanted = self._graph.signatures[name].inputs
                raise TypeError(f"steps.{name} takes its inputs by name: {', '.join(f'{each}=...' for each in wanted)}")
            return await self._asked(plan[name], inputs)

        return ask

    async def _asked(self, step: Step, given: Mapping[str, Any]) -> dict[str, Array]:
        wanted = self._graph.signatures[step.name]
        inputs, rows = canonical(given, wanted.inputs, wanted.optional, f"what step {step.name} is given")
        if not rows:
            raise ValueError(f"what step {step.name} is given has no rows")
        if self._ended:
            raise RuntimeError(f"step {step.name} is asked after the request has ended")
        asking = asyncio.run_coroutine_threadsafe(self._ask(step, inputs, rows), self._loop)
        self._under_way.add(asking)
        try:
            answer = await asyncio.wrap_future(asking)
            return dict(answer)
        except ProxyError as error:
            raise Failed(step.name, error) from None
        finally:
            self._under_way.discard(asking)

    def _end(self) -> None:
        """End what is still asked for a request that has its answer: the rows leave the models' queues."""
        self._ended = True
        for asking in list(self._under_way):
            asking.cancel()


class Composer:
    """A class of the user's, on its own thread."""

    def __init__(self, spec: ComposerSpec, folder: str) -> None:
        self._spec = spec
        self._folder = folder
        self._composer: Any = None
        self._stopped = False
        self._logged_s = -_LOG_S
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._turn, name="composer", daemon=True)
        self._thread.start()
        self._signature: Signature | None = None
        self._fault: GraphError | None = None

    async def look(self) -> Signature:
        """Return what it takes and gives; its code is loaded when first asked.

        Raises:
            GraphError: it cannot be loaded, or blocks the loop that it runs on.
        """
        if self._fault is not None:
            raise GraphError(self._fault.path, self._fault.what)
        signature = self._signature
        if signature is None:
            try:
                self._composer, found = await _elsewhere(self._load(), self._loop)
            except GraphError as fault:  # once: what a module does when it is imported is not done again
                self._fault = fault
                raise
            self._signature = signature = found
        try:
            async with asyncio.timeout(_ANSWERS_S):
                await _elsewhere(asyncio.sleep(0), self._loop)
        except TimeoutError:
            raise GraphError(
                "composer", f"its code has blocked the event loop for {_ANSWERS_S:g} s: {_UNBLOCK}"
            ) from None
        return signature

    async def run(
        self, graph: Typed, inputs: Mapping[str, Array], rows: int, deadline_s: float, ask: Ask
    ) -> Mapping[str, Array]:
        """Return the outputs of one request's rows.

        Raises:
            ProxyError: what a step raised, or the code; or the deadline has passed.
        """
        steps = Steps(graph, deadline_s, ask, asyncio.get_running_loop())
        try:
            async with asyncio.timeout(max(0.0, steps.left_s)):
                return await _elsewhere(self._run(graph, dict(inputs), rows, steps), self._loop)
        except TimeoutError:
            late = DeadlineExceeded("the composer did not answer in time")
            late.may_have_run = True
            raise late from None
        finally:
            steps._end()

    def close(self) -> None:
        """Let the thread end, once nothing blocks it."""
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
            except BaseException:  # a task of the user's own that called sys.exit()
                logger.exception("event=composer_task_failed")
        self._loop.close()

    async def _load(self) -> tuple[Any, Signature]:
        path = "composer.source" if self._spec.source else "composer.importPath"
        try:
            module, name = self._module()
            made = getattr(module, name)()
        except BaseException as error:
            logger.exception("event=composer_failed")
            raise GraphError(path, _words(f"its code cannot be loaded: {type(error).__name__}: {error}")) from None
        inputs, outputs = (getattr(made, each, None) for each in ("inputs", "outputs"))
        if not asyncio.iscoroutinefunction(getattr(made, "run", None)):
            raise GraphError(path, f"{name} has no `async def run(self, inputs, steps)`")
        return made, declared_signature(inputs, outputs, path)

    def _module(self) -> tuple[ModuleType, str]:
        if self._spec.source is not None:
            declared = read_source(self._spec.source)
            module = ModuleType("composer")
            sys.modules["composer"] = module  # dataclasses and pickle look their module up
            exec(compile(self._spec.source, "composer.source", "exec"), module.__dict__)
            return module, declared.name
        assert self._spec.import_path is not None
        name, _, member = self._spec.import_path.partition(":")
        # Last: a file of the user's named as one of the library's must not stand in its place.
        sys.path.append(self._folder)
        return importlib.import_module(name), member

    def _log(self, error: BaseException) -> None:
        """Log a traceback, but not for each caller who knows how to cause one."""
        now_s = time.monotonic()
        if now_s - self._logged_s >= _LOG_S:
            self._logged_s = now_s
            logger.error("event=composer_failed", exc_info=error)

    def _meant(self, error: BaseException, rows: int) -> ProxyError:
        """Return what the caller is told of what the code raised."""
        told = _told(error)
        if isinstance(told, Failed):
            return _of_step(told)
        if isinstance(told, Refused):
            return _refusal(told, rows)
        self._log(error)
        return ModelFailed(_words(f"the composer raised {type(error).__name__}: {error}"))

    async def _run(self, graph: Typed, inputs: dict[str, Array], rows: int, steps: Steps) -> Mapping[str, Array]:
        try:
            answer = await self._composer.run(inputs, steps)
            outputs, count = canonical(answer, graph.outputs, frozenset(), "the composer's answer")
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise ModelFailed("the composer cancelled itself") from None
        except BaseException as error:
            raise self._meant(error, rows) from None
        if count != rows:
            raise ModelFailed(f"the composer answered {count} rows, and was asked {rows}")
        return outputs


async def _elsewhere(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Return what a coroutine gives on another thread's loop; it is cancelled with this one."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


def _told(error: BaseException) -> BaseException:
    """Return what was raised for the caller; of what several tasks raised the first such."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    told = (each for each in map(_told, error.exceptions) if isinstance(each, Failed | Refused))
    return next(told, error)


def _words(text: str) -> str:
    """Return what code says as an answer can hold it: text throughout, and no book."""
    return text.encode(errors="backslashreplace").decode()[:MOST_WORDS]


def _of_step(failed: Failed) -> ProxyError:
    """Return a step's error as the graph's; rows that failed there are not the caller's, by number."""
    error = failed.error
    if isinstance(error, RowsFailed):
        return StepFailed(failed.step, error)
    return error


def _refusal(refused: Refused, rows: int) -> ProxyError:
    message = _words(str(refused))
    if refused.row is not None and 0 <= refused.row < rows:
        return RowsFailed([RowError(refused.row, refused.status, message)])
    error = InvalidRequest(message)
    error.status = refused.status
    return error
