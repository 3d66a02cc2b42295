"""Reader of MLflow's `MLmodel` file: the model's file, format and signature, without mlflow."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Final

import numpy as np

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import describe, exception_message
from shoal_runtime.formats.columns import DATETIME, INPUT, TEXT
from shoal_runtime.formats.tabular import OUTPUT, imported
from shoal_runtime.signature.spec import ANY, TensorSpec
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
"""Datatypes of MLflow's column types."""
SELF_DESCRIBING: Final = (Format.KERAS, Format.ONNX, Format.TORCH_EXPORT)
"""Formats whose files name their tensors."""
OPAQUE: Final = (Format.MLFLOW, Format.TORCH_SCRIPT)
"""Formats whose outputs are known only from MLmodel."""
FLAVOURS: Final[Mapping[str, Mapping[str, Format]]] = {
    "sklearn": {".skops": Format.SKOPS, "": Format.JOBLIB},
    "xgboost": {".skops": Format.SKOPS, ".pkl": Format.JOBLIB, "": Format.XGBOOST},
    "lightgbm": {".skops": Format.SKOPS, ".pkl": Format.JOBLIB, "": Format.LIGHTGBM},
    "onnx": {"": Format.ONNX},
    "keras": {"": Format.KERAS},
    "pytorch": {".pt2": Format.TORCH_EXPORT, "": Format.TORCH_SCRIPT},
}
"""Formats by flavor and file suffix; the suffix "" stands for any other."""
FILE_KEYS: Final = ("pickled_model", "model_data", "data")


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Description of a model from model.toml or MLmodel: file, inputs and outputs."""

    file: Path | None
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    described_outputs: Sequence[TensorSpec] = ()
    """Used if the model cannot name its outputs or predict example rows."""


def read_mlmodel(directory: Path, described: ModelDescription) -> tuple[Format, ModelDescription]:
    """Read a directory's MLmodel file; return the model's format and description.

    The format is `MLflow` if only mlflow can run the model. Values in `described`, from model.toml, take precedence.

    Raises:
        LoadError: there is no MLmodel, or its model cannot be served.
    """
    yaml = imported("yaml", "runtime-light")
    path = directory / FILE_NAME
    try:
        if path.stat().st_size > MAX_BYTES:
            raise LoadError(f"{path} exceeds {MAX_BYTES} bytes")
        document = _mapping(yaml.safe_load(path.read_bytes()))
    except FileNotFoundError:
        raise LoadError(f"{directory} holds no {FILE_NAME}, which every MLflow model has") from None
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        raise LoadError(f"{path} cannot be read: {exception_message(error)}") from None
    flavours = _mapping(document.get("flavors"))
    # The first flavor in this order, since python_function accompanies every other flavor.
    for name, formats in FLAVOURS.items():
        if name in flavours:
            file = described.file or _file(directory, _mapping(flavours[name]))
            form = formats.get(file.suffix, formats[""])
            return form, _with_signature(replace(described, file=file), document, form)
    return Format.MLFLOW, _with_signature(described, document, Format.MLFLOW)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _file(directory: Path, flavour: Mapping[str, Any]) -> Path:
    """Return the file of a flavor, or the file named `model` in the flavor's directory."""
    # The path is in an untrusted file, so it must stay within the directory.
    name = next((flavour[key] for key in FILE_KEYS if isinstance(flavour.get(key), str)), "")
    if not name or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise LoadError(f"{FILE_NAME} must name a file in the model's directory, not {name!r:.200}")
    path = directory / name
    inside = sorted(path.glob("model.*")) if path.is_dir() else []
    return inside[0] if inside else path


def _with_signature(described: ModelDescription, document: Mapping[str, Any], form: Format) -> ModelDescription:
    if form in SELF_DESCRIBING:
        return described
    signature = _mapping(document.get("signature"))
    try:
        inputs = _tensors(signature.get("inputs"), INPUT)
        outputs = _tensors(signature.get("outputs"), OUTPUT)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LoadError(
            f"the signature in {FILE_NAME} must consist of plain columns or tensors ({describe(error)})."
            " Declare [[inputs]] and [[outputs]] in model.toml"
        ) from None
    # Texts in model.toml are dates if MLmodel declares them so.
    dates = {spec.name for spec in inputs if spec.logical_type == DATETIME}
    declared = [
        replace(spec, logical_type=DATETIME)
        if spec.name in dates and spec.datatype == "BYTES" and spec.logical_type is None
        else spec
        for spec in described.inputs
    ]
    known = described.outputs or (outputs if form in OPAQUE else ())
    return replace(described, inputs=declared or inputs, outputs=known, described_outputs=outputs)


def _tensors(text: Any, unnamed: str) -> tuple[TensorSpec, ...]:
    """Convert a signature in JSON to tensor specifications.

    Tensors without a name are numbered: if `unnamed` is "input-0", they are named "input-0", "input-1" and so on.
    """
    # "input-0" becomes "input-".
    stem = unnamed.removesuffix("0")
    entries = json.loads(text) if text else []
    return tuple(_tensor(entry, entry.get("name") or f"{stem}{index}") for index, entry in enumerate(entries))


def _tensor(entry: Mapping[str, Any], name: str) -> TensorSpec:
    """Convert one tensor or column of a signature; an optional column may be omitted or null."""
    kind = entry["type"]
    if kind == "tensor":
        tensor = entry["tensor-spec"]
        dtype = tensor["dtype"]
        datatype = "BYTES" if dtype in ("object", "str", "string") else DATATYPES[np.dtype(dtype)]
        return TensorSpec(name, datatype, tensor["shape"], content_type=TEXT if datatype == "BYTES" else None)
    # A plain column: one element per row.
    datatype, optional = COLUMNS[kind], entry.get("required") is False
    if optional and datatype in ("INT32", "INT64"):
        datatype = "FP64"  # as in pandas, where integers cannot be missing
    return TensorSpec(
        name,
        datatype,
        [ANY],
        content_type=TEXT if datatype == "BYTES" and kind != "binary" else None,
        optional=optional,
        nullable=optional and datatype != "BOOL",
        logical_type=DATETIME if kind == "datetime" else None,
    )
