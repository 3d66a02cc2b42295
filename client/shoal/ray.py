"""A model as Ray Data takes it: ``ds.map_batches(shoal.ray.Model, fn_constructor_kwargs={"uri": ...})``."""

import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import Any, Self

import numpy as np
import orjson

from shoal.errors import ConnectionFailed, DeadlineExceeded, InvalidInput, ShoalError
from shoal.own_runtime import OwnRuntime
from shoal.serving.fields import PARAMETERS
from shoal.targets import planned
from shoal.wire.answers import part_of_the_answers
from shoal.wire.messages import infer_request
from shoal.wire.parts import Part, parts_of
from shoal.wire.portions import MAX_IN_FLIGHT, USUAL_ROWS
from shoal.wire.signature import Signature
from shoal.wire.tables import Wanted, chosen_columns, inputs_of, names_in, rows_in, with_columns
from shoal_schema.wire.datatypes import Array

TIMEOUT_S = 600.0
MOST_BYTES = 64 * 2**20
"""In one part, of which a few are held at once; a runtime takes 1 GiB."""


class Model:
    """A model in a runtime of its own, called with batches of rows; give it to Ray Data's ``map_batches``.

    It is a plain class that imports no Ray: Daft and Spark's ``mapInPandas`` can call it too. The runtime needs
    ``shoal[runtime]``, or ``shoal[serve-light]`` without PyTorch. It ends with this process, however that ends.

    Args:
        uri: the model, as for ``shoal serve``: a folder, a file, a URL; a path should be absolute.
        columns: the column of each input, or the columns of numbers that together are its rows; by default those
            that have the names of inputs, or of an input's columns.
        outputs: what an output's column is called, where not as the output.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default what there is. ``num_gpus`` of Ray says which GPU is seen.
        set: fields, as for ``shoal serve --set``: ``{"batching.maxBatchSize": 64}``.
        error_column: the column of what is wrong with a row.
        timeout_s: how long the model may take for one of its batches, before the runtime is ended for it.

    Raises:
        FieldError, MachineError: the model cannot be loaded so, or here; the message says why.
    """

    def __init__(  # noqa: PLR0913 (keywords, each with its default)
        self,
        uri: str,
        columns: Mapping[str, Wanted] | None = None,
        *,
        outputs: Mapping[str, str] | None = None,
        device: str | None = None,
        set: Mapping[str, Any] | None = None,
        error_column: str = "shoal_error",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        fields = {**({"runtime.device": device} if device else {}), **(set or {})}
        plan = planned(None, uri, [_text(name, value) for name, value in fields.items()])
        self._columns, self._error_column, self._timeout_s = columns, error_column, timeout_s
        self._runtime = OwnRuntime(plan.name, {"SHOAL_LOG_LEVEL": "WARNING", **plan.environment()})
        self._one_at_a_time = Lock()
        self._end = weakref.finalize(self, self._runtime.close)
        self._signature = self._runtime.signature()
        if not self._signature.batches:
            raise InvalidInput(f"model {plan.name} takes no batches: its tensors have no free first dimension")
        self._names = _renamed(self._signature, outputs or {})

    def __call__(self, batch: Any) -> Any:
        """Return the batch with the model's outputs as more columns, and one that is null or says why a row has none.

        Args:
            batch: a dict of numpy arrays, a pandas frame or an Arrow table; the answer is of the same kind.

        Raises:
            InvalidInput: columns do not fit the model, or would be there twice.
            MachineError: the runtime ended and cannot be started again.
        """
        signature, rows = self._signature, rows_in(batch)
        self._refuse_twice(names_in(batch))
        inputs = inputs_of(batch, chosen_columns(self._columns, batch, signature), signature)
        parts, failed = parts_of(inputs, rows, signature) if rows else ([], {})
        sending = _Sending(self._runtime, signature, rows, failed, self._timeout_s)
        with self._one_at_a_time:
            sending.run(parts)
        tensors = {each.name: each for each in signature.outputs}
        outputs = {self._names[name]: (tensors[name], values) for name, values in sending.outputs.items()}
        return with_columns(batch, outputs, failed, self._error_column)

    def close(self) -> None:
        """End the runtime."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_twice(self, there: Iterable[str]) -> None:
        taken = {*there}
        for output, column in [*self._names.items(), ("", self._error_column)]:
            if column in taken:
                how = (
                    f"outputs={{{output!r}: NAME}} calls the model's another"
                    if output
                    else "error_column=NAME calls it another"
                )
                raise InvalidInput(f"column {column} would be there twice: {how}, or drop or rename the batch's")
            taken.add(column)


class _Sending:
    """One batch under way: what has come of its rows, and why others failed."""

    def __init__(
        self, runtime: OwnRuntime, signature: Signature, rows: int, failed: dict[int, str], timeout_s: float
    ) -> None:
        self.outputs: dict[str, Array] = {each.name: np.full(rows, None, object) for each in signature.outputs}
        self._failed = failed
        self._runtime = runtime
        self._signature = signature
        self._timeout_s = timeout_s

    def run(self, parts: Iterable[Part]) -> None:
        """Send all, a few parts at a time; one that fails goes in halves, one that ends the runtime row by row."""
        most = self._signature.max_batch_size or USUAL_ROWS
        cut = (each for part in parts for each in part.cut(most, self._signature))
        waiting = deque(light for each in cut for light in each.lighter(MOST_BYTES, self._signature))
        running: dict[Future[ShoalError | None], Part] = {}
        lost: list[tuple[Part, ShoalError]] = []
        with ThreadPoolExecutor(MAX_IN_FLIGHT, "shoal-part") as pool:
            while waiting or running:
                while waiting and not lost and len(running) < MAX_IN_FLIGHT:
                    part = waiting.popleft()
                    running[pool.submit(self._send, part)] = part
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    part, error = running.pop(done), done.result()
                    if error is not None and _ends_it(error):
                        lost.append((part, error))
                    elif error is not None:
                        waiting.extendleft(self._halves(part, error))
                if lost and not running:
                    self._send_alone(lost)
                    lost = []

    def _send(self, part: Part) -> ShoalError | None:
        request = infer_request(self._signature.name, self._signature, part.tensors, {})
        try:
            response = self._runtime.ask(request, self._timeout_s)
            outputs, errors = part_of_the_answers(response, self._signature, len(part.rows))
        except ShoalError as error:
            return error
        bad = {each.row: each.message for each in errors}
        self._failed.update({part.rows[row]: message for row, message in bad.items()})
        good = [row for number, row in enumerate(part.rows) if number not in bad]
        for name, values in outputs.items():
            for row, value in zip(good, values, strict=True):
                self.outputs[name][row] = value
        return None

    def _halves(self, part: Part, error: ShoalError) -> Iterable[Part]:
        if len(part.rows) > 1:
            return part.cut((len(part.rows) + 1) // 2, self._signature)
        self._failed[part.rows[0]] = error.message
        return ()

    def _send_alone(self, lost: Sequence[tuple[Part, ShoalError]]) -> None:
        """Start the runtime again, and send it row by row what was under way when it ended.

        Not by halves: a start takes far longer than the rows of a few parts, and so there is one for each culprit.
        """
        rows = [row for part, _ in lost for row in part.cut(1, self._signature)]
        error: ShoalError | None = lost[0][1]
        if len(rows) > 1:
            self._start_again(lost[0][1])
        for row in rows:
            if len(rows) > 1:
                error = self._send(row)
            if error is not None:
                self._failed[row.rows[0]] = self._start_again(error) if _ends_it(error) else error.message

    def _start_again(self, error: ShoalError) -> str:
        how = self._runtime.end(error)
        self._runtime.start()
        return f"the model did not survive this row: {how}"


def _ends_it(error: ShoalError) -> bool:
    """Return whether the runtime has ended, is about to, or is to be ended because it does not answer."""
    return error.status == 503 or (error.status is None and isinstance(error, ConnectionFailed | DeadlineExceeded))


def _text(name: str, value: Any) -> str:
    """Return a field and its value as ``--set`` takes them."""
    if isinstance(value, list | tuple) and not name.startswith(PARAMETERS):
        return f"{name}={','.join(map(str, value))}"
    return f"{name}={value if isinstance(value, str) else orjson.dumps(value).decode()}"


def _renamed(signature: Signature, outputs: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each output.

    Raises:
        InvalidInput: there is no such output.
    """
    names = [each.name for each in signature.outputs]
    if unknown := [name for name in outputs if name not in names]:
        raise InvalidInput(f"outputs: the model has no output {unknown[0]}; it has {', '.join(names)}")
    return {name: outputs.get(name, name) for name in names}
