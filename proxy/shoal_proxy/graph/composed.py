"""Interface for composers: the steps to call, and the errors to raise.

A composer is the user's Python code that passes a request through the models of a graph.
"""

import asyncio
import operator
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Final

from shoal_proxy.errors import MAX_WORDS, InvalidRequest, ModelFailed, ProxyError, RowsFailed, StepFailed
from shoal_proxy.graph.canonical import canonical, readable
from shoal_proxy.graph.graph_request import Ask
from shoal_proxy.graph.values import filled_shape, gaps
from shoal_schema.graphs.types import TypedGraph
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.row_errors import RowError

_REFUSALS: Final = range(400, 500)


class Refused(Exception):
    """Raised by a composer to reject one row of a request, or all rows."""

    def __init__(self, message: str, *, row: int | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.row = None if row is None else operator.index(row)
        self.status = operator.index(status)
        if not _REFUSALS[0] <= self.status <= _REFUSALS[-1]:
            raise ValueError(f"the status of a rejection must be {_REFUSALS[0]} to {_REFUSALS[-1]}, not {status}")


class Failed(Exception):
    """Raised in a composer when a step fails.

    A composer that does not catch it fails with the step's status.

    Attributes:
        step: name of the step.
        status: HTTP status of the step's response.
        rows: numbers of the failed rows within the call; empty if the whole call failed.
    """

    def __init__(self, step: str, error: ProxyError) -> None:
        super().__init__(error.message)
        self.step = step
        self.status = error.status
        self.rows = tuple(each.row for each in error.errors) if isinstance(error, RowsFailed) else ()
        self.error = error


class Steps:
    """The steps that one request's composer may call.

    ``await steps.NAME(input=array)`` returns a dict of arrays.
    """

    Refused = Refused
    Failed = Failed

    def __init__(self, graph: TypedGraph, deadline_s: float, call_step: Ask, loop: asyncio.AbstractEventLoop) -> None:
        self._graph = graph
        self._deadline_s = deadline_s
        self._ask = call_step
        self._loop = loop
        self._plan = {step.name: step for step in graph.plan.steps}
        self._under_way: set[Future[Mapping[str, Array]]] = set()
        self._ended = False

    @property
    def left_s(self) -> float:
        """Return the seconds until the client's deadline."""
        return self._deadline_s - time.monotonic()

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, dict[str, Array]]]:
        """Return a coroutine function that calls the step with this name."""
        plan = self.__dict__.get("_plan", {})
        if name not in plan:
            raise AttributeError(f"there is no step {name!r}; steps are {', '.join(plan)}")

        async def call_step(*unnamed: Any, **inputs: Any) -> dict[str, Array]:
            """Call the step with the given inputs, and return its outputs."""
            step, model = plan[name], self._graph.signatures[name]
            if unnamed:
                wanted = ", ".join(f"{each}=..." for each in model.inputs)
                raise TypeError(f"steps.{name} takes its inputs by name: {wanted}")
            arrays, rows = canonical(inputs, model.inputs, model.optional, f"the input of step {name}")
            if not rows:  # a model is not called for no rows
                empty = {each: gaps(tensor, (0, *filled_shape(tensor))) for each, tensor in model.outputs.items()}
                return readable(empty, model.outputs)
            if self._ended:
                raise RuntimeError(f"step {name} is called after the request has ended")
            # The call runs on the proxy's loop; the code awaits it on the composer's.
            asking = asyncio.run_coroutine_threadsafe(self._ask(step, arrays, rows), self._loop)
            self._under_way.add(asking)
            try:
                return readable(await asyncio.wrap_future(asking), model.outputs)
            except ProxyError as error:
                raise Failed(name, error) from None
            finally:
                self._under_way.discard(asking)

        return call_step

    def end(self) -> None:
        """Cancel all calls in progress, as the request has its response."""
        self._ended = True
        for asking in list(self._under_way):
            asking.cancel()


def client_error(error: BaseException, rows: int) -> ProxyError | None:
    """Convert an exception of a composer (the user's code) to the client's error.

    Returns: None for an exception other than `Refused` and `Failed`, which is a bug of the user's code.
    """
    # Of an exception group the first one that is meant for the client.
    left = [error]
    raised: Failed | Refused | None = None
    while left and raised is None:
        each = left.pop()
        if isinstance(each, Failed | Refused):
            raised = each
        elif isinstance(each, BaseExceptionGroup):
            left += reversed(each.exceptions)
    if isinstance(raised, Refused):
        message = exception_text(raised)
        if raised.row is None:
            rejection = InvalidRequest(message)
            rejection.status = raised.status
            return rejection
        if not 0 <= raised.row < rows:
            return ModelFailed(f"the composer rejected row {raised.row} of {rows}: {message}")
        return RowsFailed([RowError(raised.row, raised.status, message)])
    if not isinstance(raised, Failed):
        return None
    if isinstance(raised.error, RowsFailed):
        # The numbers of rows are those of the call, which are not the client's.
        failed = InvalidRequest(f"among the rows of its call, {raised.error.message}")
        return StepFailed(raised.step, failed, raised.error.status)
    return raised.error


def exception_text(error: BaseException) -> str:
    """Return the text of an exception of a user's composer class, shortened.

    The result is valid Unicode.
    """
    try:  # the user's class may raise anything in `__str__`
        text = str(error)
    except BaseException as odd:
        text = f"(its text raises {type(odd).__name__})"
    return text.encode(errors="backslashreplace").decode()[:MAX_WORDS]
