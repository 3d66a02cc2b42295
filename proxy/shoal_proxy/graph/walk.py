"""One request's way through a graph: steps begin as soon as what they need is there, and end together.

A chain is walked without a task of its own for each step; where several can run, they do, and the first that fails ends
the others: their connections are closed, and with them their rows leave the queues of the models.
"""

import asyncio
from collections.abc import Mapping

from shoal_proxy.errors import ModelFailed, ProxyError, RowsFailed
from shoal_proxy.graph.frame import Ask, Call, Frame
from shoal_schema.graphs.plan import Plan, Step
from shoal_schema.wire.datatypes import Array

_TRIES = 32
"""How often a model is asked at most for those rows of a request that do not fail, where a step may be left out."""
_OF_ROWS = (400, 413, 422, ModelFailed.status)
"""What a model says of all rows that may be of one, or of how many they are; not that it is busy, or away."""


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
    """Take those rows through a step that do not fail; the others go on without it.

    A model that names the rows that failed is asked for the others; one that fails as a whole is asked in halves.
    """
    left, answered = [list(range(call.asked))], []
    for _ in range(_TRIES):
        if not left:
            break
        rows = left.pop()
        whole = len(rows) == call.asked
        inputs = call.inputs if whole else {name: array[rows] for name, array in call.inputs.items()}
        try:
            answered.append((rows, await ask(step, inputs, len(rows))))
        except RowsFailed as error:
            failed = {each.row for each in error.errors}
            left += [kept] if (kept := [row for index, row in enumerate(rows) if index not in failed]) else []
        except ProxyError as error:
            if error.status in _OF_ROWS and len(rows) > 1:
                left += [rows[len(rows) // 2 :], rows[: len(rows) // 2]]
    frame.finish_parts(step, call, answered)
