"""Measurement of a model in each precision: `python -m shoal_runtime precision FILE [ROWS]`."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from shoal_runtime.errors import LoadError
from shoal_runtime.inspecting import kept_warnings
from shoal_runtime.packages import install_extras
from shoal_runtime.readiness import Readiness
from shoal_runtime.serving import log_cause
from shoal_runtime.settings import Settings
from shoal_runtime.signature.spec import TensorSpec
from shoal_runtime.startup.deviations import Tolerance
from shoal_runtime.startup.precision_choice import Measurement, choose
from shoal_runtime.startup.precisions import (
    LoadedPrecision,
    load_reference,
    measure,
    sample_batches,
    try_precision,
)
from shoal_runtime.startup.trial_rows import Batch
from shoal_runtime.storage.fetching import fetch_model
from shoal_schema.resource.runtime import DType, Precision
from shoal_schema.wire.datatypes import Array

MAX_BATCHES: Final = 16
"""Batches of a file's rows to compare."""
ROWS_REMEDY: Final = "Give a file of rows with --rows, as for `shoal batch --input`"

Json = dict[str, Any]


def measure_precisions(settings: Settings, rows: str | None = None) -> Json:
    """Fetch and load the configured model in each precision; return speed and deviation of each.

    A LoadError is returned as the message in `refused`, which is None otherwise.

    Args:
        settings: settings of the runtime.
        rows: address of a file with the rows; None to generate rows.
    """
    report: Json = {"name": None, "device": None, "reference": None, "rows": None, "precisions": [], "chosen": None}
    start_s = time.monotonic()
    report["refused"] = None
    with kept_warnings() as report["warnings"]:
        try:
            if rows is not None:
                # Before the model is loaded, which may take minutes.
                _file_reader()
            files = fetch_model(settings, Readiness())
            reference = load_reference(files, settings)
            report |= _described(reference, rows)
            batches, report["rows"]["count"] = _batches(reference, rows)
            report["rows"]["batches"] = len(batches)
            # Against itself, Float32 shows how far results differ from run to run.
            measured = [measure(reference, reference, batches)]
            if why := measured[0].failure:
                raise LoadError(f"the model cannot compute the rows: {why}. {ROWS_REMEDY}")
            for precision in list(Precision)[1:]:
                found, candidate = try_precision(files, settings, precision, reference, batches)
                measured.append(found)
                if candidate is not None:
                    candidate.unload()
                del candidate
                gc.collect()
            report["precisions"] = [_entry(each, report["rows"]["batch_size"]) for each in measured]
            report["chosen"] = _chosen(measured, settings)
        except LoadError as error:
            log_cause(error)
            report["refused"] = str(error)
    return {**report, "seconds": time.monotonic() - start_s}


def _described(reference: LoadedPrecision, rows: str | None) -> Json:
    model = reference.model
    return {
        "name": model.name,
        "device": str(model.machine.device),
        "reference": "Float32" if reference.dtype is DType.FLOAT32 else "the dtype of the file",
        "rows": {"source": rows or "generated", "batch_size": model.signature.max_batch_size, "batches": 0, "count": 0},
    }


def _batches(reference: LoadedPrecision, rows: str | None) -> tuple[Sequence[Batch], int]:
    """Return the batches to measure with, and their number of different rows.

    Raises:
        LoadError: rows cannot be read or generated, or the model rejects them; the message has the remedy.
    """
    if rows is None:
        try:
            batches = sample_batches(reference)
            return batches, len(batches) * reference.model.signature.max_batch_size
        except LoadError as error:
            raise LoadError(f"{error}. {ROWS_REMEDY}") from error
    from shoal_runtime.offline.errors import JobError  # noqa: PLC0415

    signature = reference.model.signature
    try:
        return _file_reader()(rows, signature.inputs, signature.max_batch_size, MAX_BATCHES)
    except JobError as error:
        raise LoadError(f"{error}. {ROWS_REMEDY}") from error


def _file_reader() -> Callable[[str, Sequence[TensorSpec], int, int], tuple[list[dict[str, Array]], int]]:
    """Return `sample_rows`, which needs an extra.

    Raises:
        LoadError: the extra is not installed; the message has the remedy.
    """
    try:
        from shoal_runtime.offline.sample_rows import sample_rows  # noqa: PLC0415 (pyarrow is an extra)
    except ModuleNotFoundError as error:
        raise LoadError(f"--rows needs {error.name}, which is not installed. {install_extras('batch')}") from None
    return sample_rows


def _entry(found: Measurement, batch_size: int) -> Json:
    batch_s = found.batch_s
    return {
        "precision": found.precision,
        "failure": found.failure or None,
        "rows_per_s": None if batch_s is None else batch_size / max(batch_s, 1e-9),
        "batch_ms": None if batch_s is None else 1000 * batch_s,
        "speed": found.speed,
        "weights_bytes": found.weights_bytes,
        "device_bytes": found.device_bytes,
        # JSON has no infinity.
        "outputs": [
            {name: None if value == float("inf") else value for name, value in asdict(each).items()}
            for each in found.deviations
        ],
    }


def _chosen(measured: Sequence[Measurement], settings: Settings) -> Mapping[str, Any] | None:
    """Return what a tolerance of the settings would choose; None without a tolerance."""
    if (limits := Tolerance.of(settings.precision)) is None:
        return None
    choice = choose(measured, limits)
    return {"precision": choice.precision, "speed": choice.speed, "rejected": dict(choice.rejected)}
