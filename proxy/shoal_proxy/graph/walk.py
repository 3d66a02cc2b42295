"""Walk of one request through a graph: steps start when inputs are ready.

A chain of steps is walked without a task for each step. Steps that can run at the same time run concurrently. The first
step that fails cancels the others: their connections are closed, and their rows leave the models' queues.
"""

import asyncio
from collections.abc import Mapping

from shoal_proxy.errors import ModelFailed, ProxyError, RowsFailed
from shoal_proxy.graph.graph_request import Ask, GraphRequest, StepCall
from shoal_schema.graphs.plan import GraphPlan, GraphStep
from shoal_schema.wire.datatypes import Array

_TRIES = 32
"""Most calls of an optional step's model for the rows of a request that do not fail."""
_OF_ROWS = (400, 413, 422, ModelFailed.status)
"""Statuses that may be caused by single rows, or by their number; not by load or by a lost model."""


async def walk(plan: GraphPlan, frame: GraphRequest, call_step: Ask) -> Mapping[str, Array]:
    """Pass a request through all steps, and return the graph's outputs.

    Raises:
        RowsError: some rows cannot be processed.
        ProxyError: a required step failed; the error names the step.
    """
    left = {step.name: step for step in plan.steps}
    running: dict[asyncio.Task[None], GraphStep] = {}
    try:
        while left or running:
            waited_for = left.keys() | {step.name for step in running.values()}
            ready = [step for step in left.values() if not step.after & waited_for]
            for step in ready:
                del left[step.name]
            if len(ready) == 1 and not running:
                await _run_step(ready[0], frame, call_step)
                continue
            running |= {asyncio.create_task(_run_step(step, frame, call_step)): step for step in ready}
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a failed one stays in `running`, which is ended below
            for task in done:
                del running[task]
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.gather(*running, return_exceptions=True)
    return frame.outputs()


async def _run_step(step: GraphStep, frame: GraphRequest, call_step: Ask) -> None:
    """Pass the request's rows through one step."""
    call = frame.begin(step)
    if not call.asked:
        frame.skip(step)
    elif step.omits:
        await _run_optional_step(step, frame, call, call_step)
    else:
        try:
            frame.finish(step, call, await call_step(step, call.inputs, call.asked))
        except RowsFailed as error:
            raise RowsFailed(frame.errors_of_rows(step, call, error.errors)) from None


async def _run_optional_step(step: GraphStep, frame: GraphRequest, call: StepCall, call_step: Ask) -> None:
    """Pass rows through an optional step; failed rows continue without it.

    If the response names the failed rows, the model is called again for the other rows. If the whole call failed, the
    model is called for each half of the rows.
    """
    left, answered = [list(range(call.asked))], []
    for _ in range(_TRIES):
        if not left:
            break
        rows = left.pop()
        whole = len(rows) == call.asked
        inputs = call.inputs if whole else {name: array[rows] for name, array in call.inputs.items()}
        try:
            answered.append((rows, await call_step(step, inputs, len(rows))))
        except RowsFailed as error:
            failed = {each.row for each in error.errors}
            left += [kept] if (kept := [row for index, row in enumerate(rows) if index not in failed]) else []
        except ProxyError as error:
            if error.status in _OF_ROWS and len(rows) > 1:
                left += [rows[len(rows) // 2 :], rows[: len(rows) // 2]]
    frame.finish_parts(step, call, answered)
