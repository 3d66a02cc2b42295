"""Bringing a model up: fetch, load, warm."""

from __future__ import annotations

import gc
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from shoal_runtime.cores import core_limit, default_threads
from shoal_runtime.cuda import CudaPlacement
from shoal_runtime.errors import LoadError
from shoal_runtime.faults import HANDLER_FAULTS, describe
from shoal_runtime.fetching import Fetcher
from shoal_runtime.importing import HandlerFailed
from shoal_runtime.loading import Model, load_model
from shoal_runtime.memory import return_freed_memory
from shoal_runtime.pipeline import Lanes, Pipeline
from shoal_runtime.placement import CpuPlacement, Placement, choose_device, is_out_of_memory
from shoal_runtime.progress import Progress
from shoal_runtime.server import ServedModel
from shoal_runtime.warmup import WarmupBatch, plan_warmup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal_runtime.fetching import ModelFiles
    from shoal_runtime.readiness import Readiness
    from shoal_runtime.settings import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Started:
    """A model that is loaded and warm."""

    model: Model
    placement: Placement
    measured: Sequence[tuple[int, float]] = ()
    """Rows and seconds of the forwards in warm-up."""


def start_model(settings: Settings, readiness: Readiness) -> Started:
    """Fetch, load and warm the model. Runs on the device's thread, as its forwards will.

    Raises:
        LoadError: says what is wrong and what to do next.
    """
    start_s = time.monotonic()
    torch.set_num_threads(settings.threads or default_threads(torch.get_num_threads(), core_limit()))
    device = choose_device(settings.device)
    fetcher = Fetcher(settings.cache_dir, readiness, checksum=settings.model_checksum)
    files = fetcher.fetch(settings.model_uri)
    readiness.progress("loading")
    model = _load(files, settings, device)
    return_freed_memory()
    placement = make_placement(device, model)
    measured = warm(model, placement, readiness)
    # What is there now stays: the collector need not look at it while batches run.
    gc.collect()
    gc.freeze()
    logger.info(
        "model is ready name=%s platform=%s device=%s max_batch_size=%d seconds=%.1f",
        model.name,
        model.platform,
        device,
        model.signature.max_batch_size,
        time.monotonic() - start_s,
    )
    return Started(model, placement, measured)


def _load(files: ModelFiles, settings: Settings, device: torch.device) -> Model:
    try:
        return load_model(files, settings, device)
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise LoadError(f"the model does not fit into the memory of {device}") from None
        raise


def make_placement(device: torch.device, model: Model) -> Placement:
    """Return how batches of this model run on this device."""
    if device.type == "cpu":
        return CpuPlacement()
    return CudaPlacement(device, graphs=model.graphs)


def warm(model: Model, placement: Placement, readiness: Readiness) -> Sequence[tuple[int, float]]:
    """Run forwards for each allowed batch size, and return the rows and seconds of each; nothing where they vary.

    Raises:
        LoadError: a batch does not fit into memory.
        HandlerFailed: the model raised on a batch such as callers will send.
    """
    batches = plan_warmup(model.stages, model.signature, model.handler)
    if not batches:
        logger.info("warm-up skipped reason=inputs cannot be made up, and there is no warmup_items()")
        return ()
    with Progress(readiness, "warming up", total=len(batches), unit="batch") as progress:
        measured = []
        for batch in batches:
            measured.append((batch.rows, _warm_one(model, placement, batch)))
            progress.advance(1)
    telling = all(batch.exact for batch in batches) and len({batch.rows for batch in batches}) == len(batches)
    return sorted(measured) if telling else ()


def _warm_one(model: Model, placement: Placement, batch: WarmupBatch) -> float:
    """Run one batch to prepare for others of its form, and once more to see how long it takes, in seconds."""
    try:
        staged = placement.stage(batch.make())
        with placement.active():
            placement.warm(model.stages.forward, staged)
            return placement.measure(model.stages.forward, staged)
    except HANDLER_FAULTS as error:
        if placement.is_lost(error):
            raise LoadError(f"the device failed in warm-up: {error}") from error
        if is_out_of_memory(error):
            raise LoadError(
                f"a batch of {batch.rows} rows does not fit into memory:"
                " lower SHOAL_BATCHING_MAX_BATCH_SIZE (batching.maxBatchSize)"
            ) from error
        if batch.exact:
            raise HandlerFailed(
                f"warm-up with {batch.rows} rows failed: {describe(error)};"
                " if zeros are no valid input, offer warmup_items()"
            ) from error
        logger.warning("warm-up with made-up shapes failed rows=%d error=%s", batch.rows, type(error).__name__)
        return 0.0


def serve_model(started: Started, version: str, lanes: Lanes, on_lost: Callable[[str], None]) -> ServedModel:
    """Return the started model as the server serves it."""
    model = started.model
    pipeline = Pipeline(model.stages, model.signature, started.placement, lanes=lanes, on_lost=on_lost)
    return ServedModel(model.name, version, model.platform, pipeline, started.measured)
