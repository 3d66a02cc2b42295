"""The interface of a composer's code: the steps that it calls, and the errors that it raises."""

import asyncio
import operator
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Final

from shoal_proxy.errors import MOST_WORDS, InvalidRequest, ModelFailed, ProxyError, RowsFailed, StepFailed
from shoal_proxy.graph.canonical import canonical, readable
from shoal_proxy.graph.frame import Ask
from shoal_proxy.graph.values import filled_shape, gaps
from shoal_schema.graphs.plan import Step
from shoal_schema.graphs.types import Typed
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.row_errors import RowError

_REFUSALS: Final = range(400, 500)


class Refused(Exception):
    """Raised by a composer to reject one row of the request, or all of it."""

    def __init__(self, message: str, *, row: int | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.row = None if row is None else operator.index(row)
        self.status = operator.index(status)
        if not _REFUSALS[0] <= self.status <= _REFUSALS[-1]:
            raise ValueError(f"the status of a rejection must be {_REFUSALS[0]} to {_REFUSALS[-1]}, not {status}")


class Failed(Exception):
    """Raised where a step fails; a composer that does not catch it fails with the step's status.

    Attributes:
        step: name of the step.
        status: HTTP status of its response.
        rows: rows that failed alone, by number in the call; empty: all failed.
    """

    def __init__(self, step: str, error: ProxyError) -> None:
        super().__init__(error.message)
        self.step = step
        self.status = error.status
        self.rows = tuple(each.row for each in error.errors) if isinstance(error, RowsFailed) else ()
        self.error = error


class Steps:
    """The steps for one request: in a composer ``await steps.NAME(input=array)`` returns a dict of arrays."""

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
        """Return the seconds until the client's deadline."""
        return self._deadline_s - time.monotonic()

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, dict[str, Array]]]:
        """Return a function that calls the step of this name."""
        plan = self.__dict__.get("_plan", {})
        if name not in plan:
            raise AttributeError(f"there is no step {name!r}; steps are {', '.join(plan)}")

        async def ask(*unnamed: Any, **inputs: Any) -> dict[str, Array]:
            if unnamed:
                wanted = self._graph.signatures[name].inputs
                raise TypeError(f"steps.{name} takes its inputs by name: {', '.join(f'{each}=...' for each in wanted)}")
            return await self._asked(plan[name], inputs)

        return ask

    async def _asked(self, step: Step, given: Mapping[str, Any]) -> dict[str, Array]:
        model = self._graph.signatures[step.name]
        inputs, rows = canonical(given, model.inputs, model.optional, f"the input of step {step.name}")
        if not rows:  # a model is not called for no rows
            empty = {name: gaps(tensor, (0, *filled_shape(tensor))) for name, tensor in model.outputs.items()}
            return readable(empty, model.outputs)
        if self._ended:
            raise RuntimeError(f"step {step.name} is called after the request has ended")
        asking = asyncio.run_coroutine_threadsafe(self._ask(step, inputs, rows), self._loop)
        self._under_way.add(asking)
        try:
            return readable(await asyncio.wrap_future(asking), model.outputs)
        except ProxyError as error:
            raise Failed(step.name, error) from None
        finally:
            self._under_way.discard(asking)

    def end(self) -> None:
        """Cancel calls of a request that has its response: their rows leave the models' queues."""
        self._ended = True
        for asking in list(self._under_way):
            asking.cancel()


def meant(error: BaseException, rows: int) -> ProxyError | None:
    """Return the error for the client that an exception of the code stands for; None for a bug of the code."""
    told = _told(error)
    if isinstance(told, Refused):
        return _refusal(told, rows)
    if not isinstance(told, Failed):
        return None
    if isinstance(told.error, RowsFailed):
        # The numbers of rows are those of the call, which are not the client's.
        failed = InvalidRequest(f"of the rows of its call, {told.error.message}")
        return StepFailed(told.step, failed, told.error.status)
    return told.error


def words(error: BaseException) -> str:
    """Return the text of an exception of the code, valid and of bounded length."""
    try:
        text = str(error)
    except BaseException as odd:
        text = f"(its text raises {type(odd).__name__})"
    return text.encode(errors="backslashreplace").decode()[:MOST_WORDS]


def _told(error: BaseException) -> BaseException | None:
    """Return the exception that is meant for the client; the first one of an exception group."""
    left = [error]
    while left:
        each = left.pop()
        if isinstance(each, Failed | Refused):
            return each
        if isinstance(each, BaseExceptionGroup):
            left += reversed(each.exceptions)
    return None


def _refusal(refused: Refused, rows: int) -> ProxyError:
    message = words(refused)
    if refused.row is not None:
        if not 0 <= refused.row < rows:
            return ModelFailed(f"the composer rejected row {refused.row} of {rows}: {message}")
        return RowsFailed([RowError(refused.row, refused.status, message)])
    error = InvalidRequest(message)
    error.status = refused.status
    return error
