"""Rows of a pandas frame as wire inputs of a model."""

from typing import Any

import numpy as np
import pandas as pd

from shoal_runtime.signature.spec import TensorSpec
from shoal_runtime.signature.tensors import Signature
from shoal_schema.wire.columns import NULL
from shoal_schema.wire.datatypes import DTYPES, Array


def wire_inputs(frame: pd.DataFrame, signature: Signature) -> dict[str, Array]:
    """Return the values of each input: one tensor of named columns, or one input per column."""
    [first, *_] = signature.inputs
    if first.columns:
        values = [_values(frame[name], first) for name in first.columns]
        return {first.name: np.stack(values, axis=1)}
    if len(first.shape) > 1:
        return {first.name: np.asarray(frame, DTYPES[first.datatype])}
    return {spec.name: _values(frame[spec.name], spec) for spec in signature.inputs}


def _values(column: "pd.Series[Any]", spec: TensorSpec) -> Array:
    if spec.datatype != "BYTES":
        return np.array([np.nan if pd.isna(value) else value for value in column], DTYPES[spec.datatype])
    values = np.empty(len(column), dtype=object)
    values[:] = [NULL if pd.isna(value) else _text(value).encode() for value in column]
    return values


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, pd.Timestamp) else str(value)
