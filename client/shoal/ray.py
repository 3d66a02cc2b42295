"""A model for Ray Data: ``ds.map_batches(shoal.ray.Model, fn_constructor_kwargs={"uri": ...})``."""

import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import Any, Self

import numpy as np
import orjson

from shoal.errors import ConnectionFailed, DeadlineExceeded, InvalidInput, ShoalError
from shoal.local_runtime import LocalRuntime
from shoal.serving.fields import PARAMETERS
from shoal.targets import make_plan
from shoal.wire.messages import infer_request
from shoal.wire.parts import Part, parts_of
from shoal.wire.portions import MAX_IN_FLIGHT, USUAL_ROWS
from shoal.wire.responses import partial_results
from shoal.wire.signature import Signature
from shoal.wire.tables import Wanted, chosen_columns, inputs_of, names_in, rows_in, with_columns
from shoal_schema.wire.datatypes import Array

TIMEOUT_S = 600.0
MOST_BYTES = 64 * 2**20
"""Bytes of one part, of which up to four are in memory; a runtime accepts 1 GiB."""


class Model:
    """A model in a runtime of its own, called with batches of rows; pass it to Ray Data's ``map_batches``.

    The class does not import Ray, so Daft and Spark's ``mapInPandas`` can call it too. The runtime needs
    ``shoal[runtime]``, or ``shoal[serve-light]`` without PyTorch. The runtime ends when this process ends.

    Args:
        uri: the model, as for ``shoal serve``: a directory, a file or a URL; a path should be absolute.
        columns: the column of each input, or the numeric columns that form an input; by default columns are matched by
            name.
        outputs: the new column for each output, by output; by default the output's name.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default a GPU if available. Ray's ``num_gpus`` makes GPUs visible.
        set: fields, as for ``shoal serve --set``: ``{"batching.maxBatchSize": 64}``.
        error_column: the column of error messages.
        timeout_s: time for one batch of the model, after which the runtime is killed.

    Raises:
        FieldError, LocalError: the model cannot be loaded with these settings, or on this machine.
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
        # As assignments of --set.
        assignments = []
        for name, value in fields.items():
            if isinstance(value, list | tuple) and not name.startswith(PARAMETERS):
                assignments.append(f"{name}={','.join(map(str, value))}")
            else:
                assignments.append(f"{name}={value if isinstance(value, str) else orjson.dumps(value).decode()}")
        plan = make_plan(None, uri, assignments)
        self._columns, self._error_column, self._timeout_s = columns, error_column, timeout_s
        self._runtime = LocalRuntime(plan.name, {"SHOAL_LOG_LEVEL": "WARNING", **plan.environment()})
        # The class may be called from several threads; a batch needs the whole runtime.
        self._one_at_a_time = Lock()
        # Also at the exit of the interpreter.
        self._end = weakref.finalize(self, self._runtime.close)
        self._signature = self._runtime.signature()
        if not self._signature.batches:
            raise InvalidInput(f"model {plan.name} takes no batches: its tensors have no free first dimension")
        names, outputs = [each.name for each in self._signature.outputs], outputs or {}
        if unknown := [name for name in outputs if name not in names]:
            raise InvalidInput(f"outputs: the model has no output {unknown[0]}, only {', '.join(names)}")
        self._names = {name: outputs.get(name, name) for name in names}
        """The column of each output."""

    def __call__(self, batch: Any) -> Any:
        """Return the batch with columns for the model's outputs, and one for errors, which is null for good rows.

        Args:
            batch: a dict of numpy arrays, a pandas frame or an Arrow table; the result has the same type.

        Raises:
            InvalidInput: columns do not fit the model, or a column would be duplicated.
            LocalError: the runtime ended and cannot be restarted.
        """
        signature, rows = self._signature, rows_in(batch)
        taken = {*names_in(batch)}
        for output, column in [*self._names.items(), ("", self._error_column)]:
            if column in taken:
                argument = f"outputs={{{output!r}: NAME}}" if output else "error_column=NAME"
                raise InvalidInput(
                    f"column {column} would be duplicated. Rename it with {argument}, or rename the batch's column"
                )
            taken.add(column)
        inputs = inputs_of(batch, chosen_columns(self._columns, batch, signature), signature)
        parts, failed = parts_of(inputs, rows, signature) if rows else ([], {})
        sending = _BatchSender(self._runtime, signature, rows, failed, self._timeout_s)
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


class _BatchSender:
    """Sender of one batch to the runtime, which collects outputs and errors by row."""

    def __init__(
        self, runtime: LocalRuntime, signature: Signature, rows: int, failed: dict[int, str], timeout_s: float
    ) -> None:
        self.outputs: dict[str, Array] = {each.name: np.full(rows, None, object) for each in signature.outputs}
        self._failed = failed
        self._runtime = runtime
        self._signature = signature
        self._timeout_s = timeout_s

    def run(self, parts: Iterable[Part]) -> None:
        """Send all parts concurrently.

        Failed parts are halved; if a part ended the runtime, its rows are sent one by one.
        """
        most = self._signature.max_batch_size or USUAL_ROWS
        # By rows and then by bytes; lazily, so that few parts are in memory.
        cut = (each for part in parts for each in part.cut(most, self._signature))
        waiting = deque(light for each in cut for light in each.lighter(MOST_BYTES, self._signature))
        running: dict[Future[ShoalError | None], Part] = {}
        lost: list[tuple[Part, ShoalError]] = []
        with ThreadPoolExecutor(MAX_IN_FLIGHT, "shoal-part") as pool:
            while waiting or running:
                # After a fatal error nothing new is sent until the runtime is restarted.
                while waiting and not lost and len(running) < MAX_IN_FLIGHT:
                    part = waiting.popleft()
                    running[pool.submit(self._send, part)] = part
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    part, error = running.pop(done), done.result()
                    if error is not None and _is_fatal(error):
                        lost.append((part, error))
                    elif error is not None and len(part.rows) > 1:
                        waiting.extendleft(part.cut((len(part.rows) + 1) // 2, self._signature))
                    elif error is not None:
                        self._failed[part.rows[0]] = error.message
                if lost and not running:
                    self._send_alone(lost)
                    lost = []

    def _send(self, part: Part) -> ShoalError | None:
        request = infer_request(self._signature.name, self._signature, part.tensors, {})
        try:
            response = self._runtime.send(request, self._timeout_s)
            outputs, errors = partial_results(response, self._signature, len(part.rows))
        except ShoalError as error:
            return error
        # The outputs hold the rows that succeeded only.
        bad = {each.row: each.message for each in errors}
        self._failed.update({part.rows[row]: message for row, message in bad.items()})
        good = [row for number, row in enumerate(part.rows) if number not in bad]
        for name, values in outputs.items():
            for row, value in zip(good, values, strict=True):
                self.outputs[name][row] = value
        return None

    def _send_alone(self, lost: Sequence[tuple[Part, ShoalError]]) -> None:
        """Restart the runtime, and send the rows of the ``lost`` parts one by one.

        Halving the parts would restart the runtime more often: one by one, only a row that ends the runtime costs a
        restart.
        """
        rows = [row for part, _ in lost for row in part.cut(1, self._signature)]
        error: ShoalError | None = lost[0][1]
        if len(rows) > 1:
            self._start_again(lost[0][1])
        for row in rows:
            if len(rows) > 1:
                error = self._send(row)
            if error is not None:
                self._failed[row.rows[0]] = self._start_again(error) if _is_fatal(error) else error.message

    def _start_again(self, error: ShoalError) -> str:
        how = self._runtime.end(error)
        self._runtime.start()
        return f"this row ended the runtime: {how}"


def _is_fatal(error: ShoalError) -> bool:
    """Return whether the runtime has ended, is ending, or hangs and must be killed."""
    return error.status == 503 or (error.status is None and isinstance(error, ConnectionFailed | DeadlineExceeded))
