"""Measurement of a model in several precisions on one device, and the load of the fastest within a tolerance."""

import gc
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from msgspec import structs

from shoal_runtime.errors import LoadError
from shoal_runtime.execution.placement import Placement
from shoal_runtime.faults import HANDLER_FAULTS, describe
from shoal_runtime.importing import HandlerFailed
from shoal_runtime.loading import Model, load_model
from shoal_runtime.packages import install_package
from shoal_runtime.settings import Settings
from shoal_runtime.startup.deviations import Tolerance, deviation
from shoal_runtime.startup.parameters import count_parameters, modules_of
from shoal_runtime.startup.precision_choice import Measurement, choose, more_turns
from shoal_runtime.startup.row_trials import RowTrials
from shoal_runtime.startup.trial_rows import Batch
from shoal_runtime.storage.fetching import ModelFiles
from shoal_schema.resource.runtime import DType, Precision
from shoal_schema.wire.datatypes import Array

TURNS_S: Final = 2.0
"""Time to measure a precision beyond its least number of batches."""
SLOW: Final = 4.0
SLOW_S: Final = 1.0
"""A batch that takes longer than `SLOW` batches in Float32 and `SLOW_S` ends a measurement."""
SAMPLE_ROWS: Final = 64
MAX_BATCHES: Final = 8
"""Generated rows to compare, in at most this number of batches."""
DTYPES: Final = {Precision.BFLOAT16: DType.BFLOAT16, Precision.FLOAT16: DType.FLOAT16}
"""Of the weights; other precisions have that of the reference."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedPrecision:
    """A model loaded in one precision."""

    precision: Precision
    dtype: DType
    """The dtype for the weights; `Auto` for that of the file."""
    model: Model
    placement: Placement
    trials: RowTrials
    device_bytes: int = 0
    """Memory in use on the GPU before the model was loaded."""

    @property
    def known(self) -> str:
        """Return the precision; empty for a model that keeps a dtype of its own."""
        keeps = self.precision is Precision.FLOAT32 and self.dtype is DType.AUTO
        return "" if keeps else self.precision

    def set_mode(self) -> None:
        """Set whether CUDA may compute products of Float32 in TF32; has no effect on a CPU."""
        if _on_cuda(self.model):
            import torch  # noqa: PLC0415 (the model has imported it)

            allowed = self.precision is Precision.TF32
            # Functions that set the older and the newer of torch's settings alike, for libraries that read either.
            torch.set_float32_matmul_precision("high" if allowed else "highest")
            torch.backends.cudnn.allow_tf32 = allowed

    def unload(self) -> None:
        """Free the model's resources, except memory that other objects hold."""
        with suppress(*HANDLER_FAULTS):
            if (unload := getattr(self.model.handler, "unload", None)) is not None:
                unload()


def _on_cuda(model: Model) -> bool:
    return getattr(model.machine.device, "type", "cpu") == "cuda"


def load_reference(files: ModelFiles, settings: Settings, precision: Precision = Precision.FLOAT32) -> LoadedPrecision:
    """Load a model with weights in Float32, or in its own dtype if its format allows no other.

    Raises:
        LoadError: the model cannot be loaded.
    """
    try:
        return load_precision(files, settings, precision, DType.FLOAT32)
    except HandlerFailed:
        raise
    except LoadError as error:
        logger.warning("event=reference_keeps_dtype message=compared with the dtype of the file: %s", error)
        return load_precision(files, settings, precision, DType.AUTO)


def load_chosen(files: ModelFiles, settings: Settings, precision: Precision) -> LoadedPrecision:
    """Load a model in the precision that another instance has chosen.

    Raises:
        LoadError: the model cannot be loaded.
    """
    if (dtype := DTYPES.get(precision)) is None:
        loaded = load_reference(files, settings, precision)
    else:
        loaded = load_precision(files, settings, precision, dtype)
    loaded.set_mode()
    return loaded


def load_precision(files: ModelFiles, settings: Settings, precision: Precision, dtype: DType) -> LoadedPrecision:
    """Load a model in a precision, with weights of a dtype.

    Raises:
        LoadError: the model, or the device, does not support the precision.
    """
    allocated_bytes = _cuda_bytes("memory_allocated")
    model = load_model(files, structs.replace(settings, runtime=structs.replace(settings.runtime, dtype=dtype)))
    if precision is Precision.INT8:
        quantize(model.handler)
    placement = model.machine.place(model.graphs)
    return LoadedPrecision(precision, dtype, model, placement, RowTrials(model, placement), allocated_bytes)


def _cuda_bytes(name: str) -> int:
    """Return a figure of torch's allocator on CUDA, such as ``memory_allocated``; 0 if CUDA is not in use."""
    torch = sys.modules.get("torch")
    return int(getattr(torch.cuda, name)()) if torch is not None and torch.cuda.is_initialized() else 0


def quantize(handler: Any) -> None:
    """Quantize the weights of a handler's linear layers to 8-bit integers, and their inputs at each batch.

    Raises:
        LoadError: torchao is not installed, or there is no layer to quantize.
    """
    if find_spec("torchao") is None:
        raise LoadError(f"it needs torchao: {install_package('torchao')}")
    import torch  # noqa: PLC0415 (the model has imported it)
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_  # noqa: PLC0415 (optional)

    layers = 0
    for module in modules_of(handler, torch.nn.Module):
        layers += sum(isinstance(each, torch.nn.Linear) for each in module.modules())
        quantize_(module, Int8DynamicActivationInt8WeightConfig())
    if not layers:
        raise LoadError("the model has no linear layer that torchao could quantize")


def sample_batches(reference: LoadedPrecision) -> list[Batch]:
    """Return batches of the largest size, of generated rows or of the handler's own items.

    Raises:
        LoadError: no rows can be generated, or the model rejects them.
    """
    rows = reference.model.signature.max_batch_size
    return reference.trials.samples(max(1, min(MAX_BATCHES, SAMPLE_ROWS // rows)), rows)


def try_precision(
    files: ModelFiles, settings: Settings, precision: Precision, reference: LoadedPrecision, batches: Sequence[Batch]
) -> tuple[Measurement, LoadedPrecision | None]:
    """Load and measure a precision; return the model too, unless it failed.

    Raises:
        LoadError: the device failed.
    """
    if precision is Precision.TF32 and not _on_cuda(reference.model):
        return Measurement(precision, failure="it needs a CUDA device"), None
    try:
        candidate = load_precision(files, settings, precision, DTYPES.get(precision, reference.dtype))
    except (LoadError, *HANDLER_FAULTS) as error:
        why = str(error) if isinstance(error, LoadError) else describe(error)
        return Measurement(precision, failure=why), None
    found = measure(reference, candidate, batches)
    if found.failure:
        candidate.unload()
        return found, None
    return found, candidate


def measure(reference: LoadedPrecision, candidate: LoadedPrecision, batches: Sequence[Batch]) -> Measurement:
    """Measure speed and deviation of a precision, by turns with Float32.

    Raises:
        LoadError: the device failed.
    """
    try:
        if why := _warm(reference, candidate, batches):
            return Measurement(candidate.precision, failure=why)
        peak_bytes = _cuda_bytes("max_memory_allocated")
        turns = _by_turns(reference, candidate, batches)
    except HANDLER_FAULTS as error:
        if isinstance(error, LoadError):
            raise
        return Measurement(candidate.precision, failure=describe(error))
    finally:
        reference.set_mode()
    size = count_parameters(candidate.model.handler)
    # Each batch of the cycle once: later turns compute the same.
    first = turns[: len(batches)]
    deviations = [
        deviation(spec, [(turn.expected[spec.name], turn.outputs[spec.name]) for turn in first])
        for spec in reference.model.signature.outputs
    ]
    return Measurement(
        candidate.precision,
        "",
        [turn.seconds for turn in turns],
        [turn.expected_s for turn in turns],
        None if size is None else size["bytes"],
        peak_bytes - candidate.device_bytes if peak_bytes else None,
        deviations,
    )


def _warm(reference: LoadedPrecision, candidate: LoadedPrecision, batches: Sequence[Batch]) -> str:
    """Prepare both models for the shapes of the batches; return why the candidate is too slow to measure."""
    for number, batch in enumerate(batches):
        reference.set_mode()
        limit_s = SLOW_S + SLOW * reference.trials.warm(batch)
        candidate.set_mode()
        if number == 0 and _on_cuda(candidate.model):
            sys.modules["torch"].cuda.reset_peak_memory_stats()
        if (seconds := candidate.trials.warm(batch)) > limit_s:
            return f"it is slow: a batch took {seconds:.1f} s, more than {SLOW:g} times as long as in Float32"
    return ""


@dataclass(frozen=True, slots=True)
class _Turn:
    seconds: float
    outputs: Mapping[str, Array]
    expected_s: float
    expected: Mapping[str, Array]
    """In Float32."""


def _by_turns(reference: LoadedPrecision, candidate: LoadedPrecision, batches: Sequence[Batch]) -> list[_Turn]:
    turns: list[_Turn] = []
    start_s = time.monotonic()
    while more_turns(len(turns), len(batches), time.monotonic() - start_s, TURNS_S):
        batch = batches[len(turns) % len(batches)]
        reference.set_mode()
        expected_s, expected = reference.trials.timed(batch)
        candidate.set_mode()
        turns.append(_Turn(*candidate.trials.timed(batch), expected_s, expected))
    return turns


def load_fastest(files: ModelFiles, settings: Settings, limits: Tolerance) -> LoadedPrecision:
    """Load a model in the fastest precision within the limits, or in that of another instance.

    It is Float32, with a warning, if there are no rows to measure with.

    Raises:
        LoadError: the model cannot be loaded, or the device failed.
    """
    if settings.runtime.dtype is not DType.AUTO:
        raise LoadError(
            "SHOAL_RUNTIME_DTYPE must be auto if a tolerance is set (SHOAL_RUNTIME_PRECISION_ABS_ERROR,"
            " SHOAL_RUNTIME_PRECISION_REL_ERROR or SHOAL_RUNTIME_PRECISION_AGREEMENT). Remove one of them"
        )
    if (chosen := settings.process.chosen_precision) is not None:
        return load_chosen(files, settings, chosen)
    best = reference = load_reference(files, settings)
    measured: list[Measurement] = []
    try:
        batches = sample_batches(reference)
    except LoadError as error:
        logger.warning("event=precision_not_measured message=the precision stays %s: %s", reference.precision, error)
        return reference
    for precision in list(Precision)[1:]:
        found, candidate = try_precision(files, settings, precision, reference, batches)
        measured.append(found)
        # At most two precisions stay in memory besides Float32.
        if choose(measured, limits).precision is precision and candidate is not None:
            best, candidate = candidate, best
        if candidate is not None and candidate is not reference:
            candidate.unload()
        del candidate
        gc.collect()
    choice = choose(measured, limits)
    for rejected, reason in choice.rejected.items():
        logger.info("event=precision_rejected precision=%s message=%s", rejected, reason)
    logger.info("event=precision_chosen precision=%s speed=%.2f", choice.precision, choice.speed)
    if best is not reference:
        reference.unload()
    if _on_cuda(best.model):
        # torch keeps the memory of unloaded models, which counts as taken when further instances start.
        gc.collect()
        sys.modules["torch"].cuda.empty_cache()
    best.set_mode()
    return best
