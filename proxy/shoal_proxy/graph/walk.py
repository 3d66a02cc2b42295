"""One request's way through a graph: steps begin as soon as what they need is there, and end together.

A chain is walked without a task of its own for each step; where several can run, they do, and the first that fails ends
the others: their connections are closed, and with them their rows leave the queues of the models.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from shoal_proxy.errors import ProxyError, RowsFailed
from shoal_proxy.graph.frame import Call, Frame
from shoal_schema.graphs.plan import Plan, Step
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.row_errors import RowError

Ask = Callable[[Step, Mapping[str, Array], int], Awaitable[Mapping[str, Array]]]
"""Asks a step's model for the answers to so many rows; raises a `ProxyError`."""
_TRIES = 3
"""How often rows are asked for without those that failed, where a step may be left out."""


async def walk(plan: Plan, frame: Frame, ask: Ask) -> Mapping[str, Array]:
    """Return the graph's outputs.

    Raises:
        RowsError: rows cannot go on.
        ProxyError: a step that is required failed, by its name.
    """
    left = {step.name: step for step in plan.steps}
    running: dict[asyncio.Task[None], Step] = {}
    try:
        while left or running:
            ready = [step for step in left.values() if not step.after & (left.keys() | _names(running))]
            for step in ready:
                del left[step.name]
            if len(ready) == 1 and not running:
                await _take(ready[0], frame, ask)
                continue
            running |= {asyncio.create_task(_take(step, frame, ask)): step for step in ready}
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # one that failed stays among those that are ended
            for task in done:
                del running[task]
    finally:
        await _end(running)
    return frame.outputs()


def _names(running: Mapping[asyncio.Task[None], Step]) -> set[str]:
    return {step.name for step in running.values()}


async def _end(running: Mapping[asyncio.Task[None], Step]) -> None:
    for task in running:
        task.cancel()
    if running:
        await asyncio.gather(*running, return_exceptions=True)


async def _take(step: Step, frame: Frame, ask: Ask) -> None:
    """Take the rows through one step."""
    call = frame.begin(step)
    if not call.asked:
        frame.skip(step)
    elif step.omits:
        await _take_what_goes(step, frame, call, ask)
    else:
        try:
            frame.finish(step, call, await ask(step, call.inputs, call.asked))
        except RowsFailed as error:
            raise RowsFailed(frame.blamed(step, call, error.errors)) from None


async def _take_what_goes(step: Step, frame: Frame, call: Call, ask: Ask) -> None:
    """Take those rows through a step that do not fail; the others go on without it."""
    failed: list[int] = []
    for _ in range(_TRIES):
        kept = [row for row in range(call.asked) if row not in set(failed)] if failed else None
        if kept == []:
            break
        inputs = call.inputs if kept is None else {name: array[kept] for name, array in call.inputs.items()}
        try:
            outputs = await ask(step, inputs, call.asked - len(failed))
        except RowsFailed as error:
            failed += _numbers(error.errors, kept)
        except ProxyError:
            break
        else:
            frame.finish(step, call, outputs, failed)
            return
    frame.skip(step)


def _numbers(errors: Sequence[RowError], kept: Sequence[int] | None) -> list[int]:
    return [error.row if kept is None else kept[error.row] for error in errors]
