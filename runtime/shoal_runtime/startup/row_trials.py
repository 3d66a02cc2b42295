"""Tests before the model is ready that each row of a batch gets its own result."""

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np

from shoal_runtime.batches.collate import collate
from shoal_runtime.batches.padding import count_rows
from shoal_runtime.errors import ForwardFailed, LoadError
from shoal_runtime.execution.placement import Placement
from shoal_runtime.faults import HANDLER_FAULTS, describe
from shoal_runtime.handlers.items import batch_of_items, row_item, tensor_batch
from shoal_runtime.handlers.outputs import OutputConverter
from shoal_runtime.loading import Model
from shoal_runtime.signature.ragged import UNEVEN_REMEDY
from shoal_runtime.startup.invariance import RowCountMismatch, RowDependence, accepts_single_row, dependence_warnings
from shoal_runtime.startup.trial_rows import (
    GENTLE,
    LARGE,
    Batch,
    ExampleRows,
    GeneratedRows,
    RowKind,
    RowSource,
    can_be_generated,
    kinds,
)
from shoal_runtime.startup.warmup import WarmupBatch
from shoal_schema.wire.datatypes import Array

TRIAL_S: Final = 3.0
"""Time for rows of further kinds; the first kind is tried without a limit."""
SLOW_S: Final = 1.0
"""Maximum time of forward for a handler to be tried."""
MODEST: Final = 255.0
"""Largest scale of numbers for handlers."""

UNTRIED_REMEDY: Final = (
    "give a handler's warmup_items() rows that it accepts, or serve one row at a time with"
    " SHOAL_BATCHING_MAX_BATCH_SIZE=1 (batching.maxBatchSize)"
)

SAMPLES_REMEDY: Final = "Give a handler's warmup_items() rows that it accepts"
Forward = Callable[[Callable[[Any], Any], Any], tuple[float, Any]]
"""Runs the model's forward on a staged batch; returns seconds and result."""

logger = logging.getLogger(__name__)


class RowTrials:
    """Tests of a model with generated rows, which run as in the pipeline."""

    def __init__(self, model: Model, placement: Placement) -> None:
        self._model = model
        self._placement = placement
        self.answers = OutputConverter(
            model.signature, model.stages.postprocess, placement.fetch, placement.library, strict=True
        )
        """Rejects undeclared outputs too."""
        # An index outside of its table ends a GPU's process, and is an error on a CPU.
        every = kinds(anywhere=str(model.machine.device) == "cpu")
        # A handler may loop or wait as often as a number says.
        self._kinds = tuple(kind for kind in every if kind.scale <= MODEST) if model.apart else every

    def check_rows(self, forward_s: float) -> None:
        """Reject a model whose rows affect each other's results or their number.

        A warning is logged if the tests show a difference without a proof, or if the model rejects all generated rows.

        Args:
            forward_s: seconds of the longest forward in warm-up.

        Raises:
            LoadError: rows affect each other; the message names the output.
        """
        model, signature = self._model, self._model.signature
        source = self._source()
        if not model.tried or signature.max_batch_size < 2 or source is None or (model.apart and forward_s > SLOW_S):
            return
        if isinstance(source, ExampleRows):
            tested: Sequence[RowKind] = self._kinds[:1]  # the handler's own items have no kinds
        else:
            nullable = any(spec.nullable for spec in signature.inputs)
            tested = [kind for kind in self._kinds if nullable or not kind.missing]
            # For proven models only unusual numbers can make a difference.
            if model.rows_proven:
                tested = [*tested[:1], *(kind for kind in tested[1:] if kind.missing or kind.scale >= LARGE)]
            tested = [*tested, *GENTLE]
        end_s = time.monotonic() + TRIAL_S
        tried = dependence_warnings(
            self.run,
            source,
            signature,
            tested,
            in_place=model.apart,
            is_over=lambda: time.monotonic() > end_s,
        )
        try:
            with _quiet():
                found = list(tried)
        except RowCountMismatch as uneven:
            raise LoadError(
                f"warm-up found outputs that do not fit their rows: {uneven}. Correct row_index or row_column"
                if signature.returned
                else f"an output may have none or several items for a row of the batch: {uneven}. {UNEVEN_REMEDY}"
            ) from None
        except RowDependence as leak:
            if not isinstance(source, ExampleRows):
                sizes = signature.allowed_batch_sizes
                single = "" if sizes and 1 not in sizes else ". SHOAL_BATCHING_MAX_BATCH_SIZE=1 serves each row alone"
                raise LoadError(
                    f"the rows of a batch affect each other's results: {leak}. If another dimension counts the rows,"
                    " name it (batch_dim) in model.toml; else export the model so that it computes each row"
                    f" independently{single}"
                ) from None
            found = [str(leak)]
        except LoadError:
            raise
        except HANDLER_FAULTS as error:
            logger.warning(
                "event=rows_not_tried message=the model rejects all generated rows (%s), so the independence of "
                "rows in a batch is unknown; %s",
                describe(error),
                UNTRIED_REMEDY,
            )
            return
        for doubt in found:
            logger.warning("event=rows_not_apart message=%s", doubt)

    def batches(self) -> list[WarmupBatch]:
        """Return warm-up batches of training values for a table model with text columns.

        The largest batch is first. For other models, the list is empty.
        """
        signature, source = self._model.signature, self._source()
        if getattr(self._model.handler, "trial_values", None) is None or not isinstance(source, GeneratedRows):
            return []

        def make(rows: int) -> Any:
            return self._given(source.join(source.draw(self._kinds[0], rows, np.random.default_rng(0))))

        sizes = signature.allowed_batch_sizes or tuple(sorted({1, signature.max_batch_size}))
        return [WarmupBatch(size, partial(make, size), exact=False) for size in sizes[::-1]]

    def answers_any(self) -> bool:
        """Return whether the model computes a generated row in a batch of one row."""
        source = self._source()
        with _quiet():
            return source is not None and accepts_single_row(self.run, source, self._kinds)

    def _source(self) -> RowSource | None:
        """Return the source of rows: the handler's own items, or generated rows; None if there is neither."""
        model = self._model
        items: Any = getattr(model.handler, "warmup_items", None)
        if items is not None and model.apart:
            own = list(items())
            return ExampleRows(own) if own else None
        values = getattr(model.handler, "trial_values", None)
        return GeneratedRows(model.signature, values) if can_be_generated(model.signature) else None

    def _given(self, batch: Batch) -> Any:
        """Convert rows to the argument of `forward`, in host memory."""
        signature, stages, library = self._model.signature, self._model.stages, self._placement.library
        texts = all(spec.datatype == "BYTES" for spec in signature.inputs) and not library.holds_text
        if isinstance(batch, dict) and stages.preprocess is None and not texts:
            return tensor_batch(batch, signature, library)
        items = batch
        if isinstance(batch, dict):
            first = signature.inputs[0]
            items = [row_item(batch, row, signature) for row in range(batch[first.name].shape[first.batch_dim])]
        if stages.preprocess is None:
            return batch_of_items(items, signature, library)
        return collate([stages.preprocess(item) for item in items], stages.preprocess_padding, library)

    def samples(self, batches: int, rows: int) -> list[Batch]:
        """Return batches of rows, of the first kind of which the model computes a batch.

        Raises:
            LoadError: no rows can be generated, or the model rejects them.
        """
        if (source := self._source()) is None:
            raise LoadError(f"no rows can be generated for texts, images or documents. {SAMPLES_REMEDY}")
        rng = np.random.default_rng(0)
        fault = ""
        with _quiet():
            for kind in (*self._kinds, *GENTLE):
                made = [source.join(source.draw(kind, rows, rng)) for _ in range(batches)]
                try:
                    self.run(made[0])
                except HANDLER_FAULTS as error:
                    if isinstance(error, LoadError):
                        raise
                    fault = describe(error)
                else:
                    return made
        raise LoadError(f"the model rejects all generated rows: {fault}. {SAMPLES_REMEDY}")

    def run(self, batch: Batch) -> Mapping[str, Array]:
        """Return the outputs of a batch.

        Raises:
            LoadError: the device failed.
        """
        return self._computed(batch, lambda forward, staged: (0.0, self._placement.forward(forward, staged)))[1]

    def warm(self, batch: Batch) -> float:
        """Run a batch once to warm up for its shape, and once to measure; return the seconds.

        Raises:
            LoadError: the device failed.
        """

        def forward(function: Callable[[Any], Any], staged: Any) -> tuple[float, Any]:
            self._placement.warm(function, staged)
            return self._placement.measure(function, staged)

        return self._computed(batch, forward)[0]

    def timed(self, batch: Batch) -> tuple[float, Mapping[str, Array]]:
        """Return seconds of the forward, and the outputs, of a batch of a warmed shape.

        Raises:
            LoadError: the device failed.
        """
        return self._computed(batch, self._placement.measure)

    def _computed(self, batch: Batch, forward: Forward) -> tuple[float, Mapping[str, Array]]:
        placement, given = self._placement, self._given(batch)
        try:
            staged = placement.stage(given)
            with placement.active():
                seconds, result = forward(self._model.stages.forward, staged)
                collected = self.answers.collect(result).wait()
        except HANDLER_FAULTS as error:
            if placement.is_lost(error):
                raise LoadError(f"the device failed in warm-up: {describe(error)}") from error
            raise
        rows = count_rows(given, {spec.name: spec.batch_dim for spec in self._model.signature.inputs})
        outputs, errors = self.answers.finish(collected, range(rows), rows, {})
        if errors:
            raise errors[0].cause or ForwardFailed(errors[0].message)
        return seconds, outputs


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield
