"""Tensor specifications from V2 model metadata, the inverse of `shoal_runtime.codecs.metadata`."""

from collections.abc import Mapping
from typing import Any

from shoal_runtime.signature.spec import TensorSpec
from shoal_schema.wire.columns import decode_columns

_PARAMETERS = (
    *("batch_dim", "content_type", "optional", "nullable", "logical_type", "unit"),
    *("pad_axis", "pad_value", "pad_mask", "unpad_axis", "unpad_input"),
)


def tensors(described: list[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    """Return the specification of each tensor in V2 metadata."""
    found = []
    for each in described:
        given = each.get("parameters") or {}
        parameters = {name: given[name] for name in _PARAMETERS if name in given}
        if columns := given.get("columns"):
            parameters["columns"] = decode_columns(str(columns))
        # Lists travel as text in V2 parameters.
        if buckets := given.get("pad_buckets"):
            parameters["pad_buckets"] = tuple(int(size) for size in str(buckets).split(","))
        found.append(TensorSpec(each["name"], each["datatype"], each["shape"], **parameters))
    return tuple(found)
