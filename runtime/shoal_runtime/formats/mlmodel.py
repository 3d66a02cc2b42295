"""MLflow's `MLmodel`: which file of the folder holds the model, in which format, and often its signature.

It is read without mlflow.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Final

import numpy as np

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import describe, said
from shoal_runtime.formats.columns import DATETIME, INPUT, TEXT
from shoal_runtime.formats.tabular import OUTPUT, imported
from shoal_runtime.handlers.spec import ANY, TensorSpec
from shoal_schema.resource.model import ModelFormat as Format
from shoal_schema.wire.datatypes import DATATYPES

FILE_NAME: Final = "MLmodel"
MAX_BYTES: Final = 1024 * 1024
COLUMNS: Final = {
    "boolean": "BOOL",
    "integer": "INT32",
    "long": "INT64",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
    "binary": "BYTES",
    "datetime": "BYTES",
}
"""The datatype of a column of MLflow's."""
TELL_THEMSELVES: Final = (Format.KERAS, Format.ONNX, Format.TORCH_EXPORT)
"""Formats whose files name their tensors, which MLmodel often does not."""
TELL_NOTHING: Final = (Format.MLFLOW, Format.TORCH_SCRIPT)
"""Formats whose outputs only MLmodel tells."""
FLAVOURS: Final[Mapping[str, Mapping[str, Format]]] = {
    "sklearn": {".skops": Format.SKOPS, "": Format.JOBLIB},
    "xgboost": {".skops": Format.SKOPS, ".pkl": Format.JOBLIB, "": Format.XGBOOST},
    "lightgbm": {".skops": Format.SKOPS, ".pkl": Format.JOBLIB, "": Format.LIGHTGBM},
    "onnx": {"": Format.ONNX},
    "keras": {"": Format.KERAS},
    "pytorch": {".pt2": Format.TORCH_EXPORT, "": Format.TORCH_SCRIPT},
}
"""By flavour and suffix of its file, the format; the suffix "" stands for any other."""
FILE_KEYS: Final = ("pickled_model", "model_data", "data")


@dataclass(frozen=True, slots=True)
class Described:
    """What is said of a model beside its file; ``told_outputs`` only count if it cannot show them itself."""

    file: Path | None
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    told_outputs: Sequence[TensorSpec] = ()


def read_mlmodel(directory: Path, described: Described) -> tuple[Format, Described]:
    """Return the format that the folder's flavour is, and what MLmodel says; `MLflow` where only mlflow can run it.

    What ``described`` holds already, from model.toml, goes before.

    Raises:
        LoadError: there is no MLmodel, or it says what cannot be served.
    """
    document = _document(directory)
    flavours = _mapping(document.get("flavors"))
    for name, formats in FLAVOURS.items():
        if name in flavours:
            file = described.file or _file(directory, _mapping(flavours[name]))
            form = formats.get(file.suffix, formats[""])
            return form, _with_signature(replace(described, file=file), document, form)
    return Format.MLFLOW, _with_signature(described, document, Format.MLFLOW)


def _document(directory: Path) -> Mapping[str, Any]:
    yaml = imported("yaml", "runtime-light")
    path = directory / FILE_NAME
    try:
        if path.stat().st_size > MAX_BYTES:
            raise LoadError(f"{path} is over {MAX_BYTES} bytes")
        return _mapping(yaml.safe_load(path.read_bytes()))
    except FileNotFoundError:
        raise LoadError(f"{directory} holds no {FILE_NAME}, which MLflow's model folders have") from None
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        raise LoadError(f"{path} cannot be read: {said(error)}") from None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _file(directory: Path, flavour: Mapping[str, Any]) -> Path:
    """Return the flavour's file, or the one called `model` in its folder; it lies in the model's folder."""
    name = next((flavour[key] for key in FILE_KEYS if isinstance(flavour.get(key), str)), "")
    if not name or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise LoadError(f"{FILE_NAME} must name a file in the model's directory, not {name!r:.200}")
    path = directory / name
    inside = sorted(path.glob("model.*")) if path.is_dir() else []
    return inside[0] if inside else path


def _with_signature(described: Described, document: Mapping[str, Any], form: Format) -> Described:
    if form in TELL_THEMSELVES:
        return described
    signature = _mapping(document.get("signature"))
    try:
        inputs = _dated(described.inputs, _tensors(signature.get("inputs"), INPUT))
        told = _tensors(signature.get("outputs"), OUTPUT)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LoadError(
            f"the signature in {FILE_NAME} is not one of plain columns or tensors ({describe(error)}): declare"
            " [[inputs]] and [[outputs]] in model.toml"
        ) from None
    outputs = described.outputs or (told if form in TELL_NOTHING else ())
    return replace(described, inputs=inputs, outputs=outputs, told_outputs=told)


def _dated(declared: Sequence[TensorSpec], told: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
    """Return the declared inputs, or else those told; declared texts that are dates in MLmodel stay dates."""
    dates = {spec.name for spec in told if spec.logical_type == DATETIME}
    return [
        replace(spec, logical_type=DATETIME)
        if spec.name in dates and spec.datatype == "BYTES" and spec.logical_type is None
        else spec
        for spec in declared
    ] or told


def _tensors(text: Any, unnamed: str) -> tuple[TensorSpec, ...]:
    """Return MLflow's columns or tensors as ours; those without a name are called after ``unnamed``."""
    stem = unnamed.removesuffix("0")
    entries = json.loads(text) if text else []
    return tuple(_tensor(entry, entry.get("name") or f"{stem}{index}") for index, entry in enumerate(entries))


def _tensor(entry: Mapping[str, Any], name: str) -> TensorSpec:
    """Return one tensor or column; an optional column may be left out, and may hold nulls where its type has some."""
    kind = entry["type"]
    if kind == "tensor":
        tensor = entry["tensor-spec"]
        datatype = _datatype(tensor["dtype"])
        return TensorSpec(name, datatype, tensor["shape"], content_type=TEXT if datatype == "BYTES" else None)
    datatype, optional = COLUMNS[kind], entry.get("required") is False
    if optional and datatype in ("INT32", "INT64"):
        datatype = "FP64"  # as pandas has whole numbers among which some are missing
    return TensorSpec(
        name,
        datatype,
        [ANY],
        content_type=TEXT if datatype == "BYTES" and kind != "binary" else None,
        optional=optional,
        nullable=optional and datatype != "BOOL",
        logical_type=DATETIME if kind == "datetime" else None,
    )


def _datatype(dtype: str) -> str:
    return "BYTES" if dtype in ("object", "str", "string") else DATATYPES[np.dtype(dtype)]
