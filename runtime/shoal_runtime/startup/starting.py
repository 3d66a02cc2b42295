"""Start of a model: fetch, load and warm up."""

import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from shoal_runtime.errors import BatchError, LoadError, RaggedRows, WrongRows, WrongShape
from shoal_runtime.execution.pipeline import Pipeline, StageThreads
from shoal_runtime.execution.placement import Placement, is_out_of_memory
from shoal_runtime.faults import HANDLER_FAULTS, describe
from shoal_runtime.http.server import ServedModel
from shoal_runtime.importing import HandlerFailed
from shoal_runtime.loading import Model, load_model, misses_torch
from shoal_runtime.packages import install_extras, remedy
from shoal_runtime.readiness import Readiness
from shoal_runtime.settings import Settings
from shoal_runtime.signature.ragged import RAGGED_REMEDY
from shoal_runtime.startup.deviations import Tolerance
from shoal_runtime.startup.precisions import load_fastest
from shoal_runtime.startup.row_trials import RowTrials
from shoal_runtime.startup.warmup import WarmupBatch, plan_measuring, plan_warmup
from shoal_runtime.storage.fetching import ModelFiles, fetch_model
from shoal_runtime.storage.load_time_limit import load_time_limit
from shoal_runtime.storage.model_state import check_same, check_unchanged, model_state, state_digest
from shoal_runtime.storage.progress import StepProgress
from shoal_schema.process.memory import peak_memory_bytes, return_freed_memory

ZEROS_ADVICE: Final = "Correct the model; if zeros are not valid input, offer warmup_items()"
GENERATED_ADVICE: Final = (
    "if requests of clients would fail too, correct the model; warmup_items() gives better rows to try"
)

MEASURING_S: Final = 2.0
"""Time to measure further batch sizes after the warm-up."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StartedModel:
    """A loaded and warmed-up model."""

    model: Model
    placement: Placement
    measured: Sequence[tuple[int, float]] = ()
    """Rows and seconds of the forwards in warm-up."""
    precision: str = ""
    """The precision that was chosen by measurement; empty if none was."""
    digest: str = ""
    """Digest of the model's files, if several instances serve it; else empty."""


def start_model(settings: Settings, readiness: Readiness) -> StartedModel:
    """Fetch, load and warm up the configured model. Runs on the device's thread.

    Raises:
        LoadError: the model cannot be served; the message has the remedy.
    """
    files = fetch_model(settings, readiness)
    if settings.process.instance is None:
        return load_and_warm(files, settings, readiness)
    before = model_state(files, settings.cache_dir)
    check_same(before, settings.process.model_digest)
    started = load_and_warm(files, settings, readiness)
    after = model_state(files, settings.cache_dir)
    check_unchanged(before, after)
    return replace(started, digest=state_digest(after))


def load_and_warm(files: ModelFiles, settings: Settings, readiness: Readiness) -> StartedModel:
    """Load and warm up a fetched model.

    Raises:
        LoadError: the model cannot be served; the message has the remedy.
    """
    start_s = time.monotonic()
    readiness.progress("loading")
    with load_time_limit(settings.process.load_timeout_s, "SHOAL_MODEL_LOAD_TIMEOUT_S", readiness):
        limits, fastest = Tolerance.of(settings.precision), None
        if limits is None:
            model = load_model(files, settings)
            placement = model.machine.place(model.graphs)
        else:
            fastest = load_fastest(files, settings, limits)
            model, placement = fastest.model, fastest.placement
        logger.info("event=model_loaded seconds=%.1f", time.monotonic() - start_s)
        return_freed_memory()
        measured = warm(model, placement, readiness)
    # All objects of the model stay alive; frozen, they are skipped by later collections.
    gc.collect()
    gc.freeze()
    logger.info(
        "event=model_ready name=%s platform=%s device=%s max_batch_size=%d seconds=%.1f",
        model.name,
        model.platform,
        model.machine.device,
        model.signature.max_batch_size,
        time.monotonic() - start_s,
    )
    return StartedModel(model, placement, measured, "" if fastest is None else fastest.known)


def warm(model: Model, placement: Placement, readiness: Readiness) -> Sequence[tuple[int, float]]:
    """Run a forward for each allowed batch size; return rows and seconds of each.

    The result is empty if the times cannot be compared, as with generated rows.

    Raises:
        LoadError: a batch does not fit into memory, or the model violates its signature.
        HandlerFailed: the model raised an error on a batch that clients may send.
    """
    batches = plan_warmup(model.stages, model.signature, model.handler, placement.library)
    trials = RowTrials(model, placement)
    batches = batches or trials.batches()
    if not batches:
        logger.info(
            "event=warmup_skipped reason=no batch is generated for a handler of texts, images or documents without"
            " warmup_items()"
        )
        trials.check_rows(0.0)
        return ()
    with StepProgress(readiness, "warming up", total=len(batches), unit="batch") as progress:
        measured = []
        for batch in batches:
            measured.append((batch.rows, _warm_one(model, placement, batch, trials)))
            progress.advance(1)
    # Only after the warm-up, which shows whether a forward is slow.
    trials.check_rows(max(seconds for _, seconds in measured))
    # Times are comparable if every batch has the form of real ones, ran, and has a size of its own.
    exact = all(batch.exact for batch in batches) and all(seconds > 0 for _, seconds in measured)
    comparable = exact and len({batch.rows for batch in batches}) == len(batches)
    return sorted([*measured, *_measure_between(model, placement, dict(measured))]) if comparable else ()


def _measure_between(model: Model, placement: Placement, ends: Mapping[int, float]) -> list[tuple[int, float]]:
    """Measure further batch sizes within a time limit; return rows and seconds of each.

    A failure ends the measurement without an error.
    """
    end_s = time.monotonic() + MEASURING_S
    measured: list[tuple[int, float]] = []
    last_s, largest_s = ends[min(ends)], ends[max(ends)]
    for batch in plan_measuring(model.stages, model.signature, model.handler, placement.library):
        # A batch takes at most twice as long as one of half its size, and runs twice: once to warm.
        if time.monotonic() + 2 * min(2 * last_s, largest_s) > end_s:
            break
        try:
            last_s, _ = _run_twice(model, placement, batch, lambda _: None)
        except HANDLER_FAULTS as error:
            if placement.is_lost(error):
                raise LoadError(f"the device failed in warm-up: {describe(error)}") from error
            logger.warning("event=measuring_failed rows=%d error=%s", batch.rows, describe(error))
            break
        measured.append((batch.rows, last_s))
    return measured


def _warm_one(model: Model, placement: Placement, batch: WarmupBatch, trials: RowTrials) -> float:
    """Run one batch, and check its outputs against the signature; return its seconds.

    A model that cannot serve any request is rejected.
    """
    try:
        seconds, collected = _run_twice(model, placement, batch, lambda result: trials.answers.collect(result).wait())
        _, errors = trials.answers.finish(collected, range(batch.rows), batch.rows, {})
    except BatchError as error:
        uneven = isinstance(error, WrongRows) and model.signature.max_batch_size == 1 and trials.answers_any()
        _judge(error, batch, uneven=uneven)
        return 0.0
    except HANDLER_FAULTS as error:
        if placement.is_lost(error):
            raise LoadError(f"the device failed in warm-up: {describe(error)}") from error
        if is_out_of_memory(error):
            raise LoadError(
                f"a batch of {batch.rows} rows does not fit into memory. Lower"
                " SHOAL_BATCHING_MAX_BATCH_SIZE (batching.maxBatchSize)"
            ) from error
        # With an exact form, clients' requests would fail as well.
        if batch.exact or _fails_alike(model, placement, batch, error):
            if misses_torch(model.format, model.handler):
                raise HandlerFailed(
                    f"PyTorch is not installed, so {type(model.handler).__name__} received numpy arrays, and raised"
                    f' {describe(error)}. {install_extras("runtime")}, or set tensors = "numpy" in the class and'
                    " use the methods of numpy"
                ) from error
            raise _failed(batch, describe(error) + remedy(error)) from error
        _warn(batch, describe(error) + remedy(error))
        return 0.0
    # Rows that the model rejects as invalid (4xx) say nothing about it.
    for failed in [error for error in errors if error.status >= 500][:1]:
        if batch.exact:
            raise _failed(batch, failed.message) from failed.cause
        _warn(batch, failed.message)
    return seconds


def _warn(batch: WarmupBatch, why: str) -> None:
    # A failure with made-up rows may be due to the rows.
    logger.warning("event=warmup_with_made_up_inputs_failed rows=%d error=%s; %s", batch.rows, why, GENERATED_ADVICE)


def _fails_alike(model: Model, placement: Placement, batch: WarmupBatch, error: BaseException) -> bool:
    """Return whether a batch with longer rows fails with the same error.

    If so, the length of the rows is not the cause of the error.
    """
    if batch.longer is None:
        return False
    try:
        _run_twice(model, placement, replace(batch, make=batch.longer), lambda _: None)
    except HANDLER_FAULTS as again:
        return describe(again) == describe(error)
    return False


def _run_twice(model: Model, placement: Placement, batch: WarmupBatch, collect: Callable[[Any], T]) -> tuple[float, T]:
    """Run a batch once to warm up and once to measure; return the seconds and the collected result."""
    staged = placement.stage(batch.make())
    with placement.active():
        placement.warm(model.stages.forward, staged)
        seconds, result = placement.measure(model.stages.forward, staged)
        return seconds, collect(result)


def _judge(error: BatchError, batch: WarmupBatch, *, uneven: bool) -> None:
    """Reject a model whose outputs violate its signature in warm-up.

    If unusual generated inputs may be the cause, only a warning is logged.

    Args:
        error: violation.
        batch: warm-up batch.
        uneven: whether the model runs one row at a time and computes other generated rows, so that no other client is
            affected.

    Raises:
        LoadError: the model is the cause.
    """
    unsure = (
        uneven
        or isinstance(error, RaggedRows)
        or (not batch.exact and (isinstance(error, WrongShape) or batch.rows == 1))
    )
    if not unsure:
        ragged = f"; where a row has any number of items, {RAGGED_REMEDY}" if isinstance(error, WrongRows) else ""
        raise LoadError(
            f"warm-up with {batch.rows} rows found that the model violates its signature: {error}."
            f" Correct its outputs, or their declaration{ragged}"
        ) from error.__cause__
    logger.warning("event=warmup_outputs_doubtful rows=%d error=%s", batch.rows, error)


def _failed(batch: WarmupBatch, why: str) -> HandlerFailed:
    advice = "Correct the model, or the rows of warmup_items()" if batch.own else ZEROS_ADVICE
    return HandlerFailed(f"warm-up with {batch.rows} rows failed: {why}. {advice}")


def serve_model(
    started: StartedModel, version: str, lanes: StageThreads, on_lost: Callable[[str], None]
) -> ServedModel:
    """Return a started model, with its pipeline, for the server.

    Args:
        started: model to serve.
        version: version of the model in responses.
        lanes: threads that run the stages of a batch.
        on_lost: function that receives the reason when the device is lost.
    """
    model = started.model
    pipeline = Pipeline(model.stages, model.signature, started.placement, lanes=lanes, on_lost=on_lost)
    memory = started.placement.memory
    return ServedModel(
        model.name,
        version,
        model.platform,
        pipeline,
        started.measured,
        memory,
        peak_memory=peak_memory_bytes,
        precision=started.precision,
        digest=started.digest,
        forward_timeout_s=model.forward_timeout_s,
    )
