"""A model's tensors from its V2 metadata, as `shoal_runtime.codecs.metadata` writes it."""

from collections.abc import Mapping
from typing import Any

from shoal_runtime.handlers.spec import TensorSpec
from shoal_schema.wire.columns import decode_columns

_KNOWN = (
    *("batch_dim", "content_type", "optional", "nullable", "logical_type", "unit"),
    *("pad_axis", "pad_value", "pad_mask", "unpad_axis", "unpad_input"),
)


def tensors(described: list[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    """Return the tensors that metadata describes."""
    return tuple(_tensor(each) for each in described)


def _tensor(described: Mapping[str, Any]) -> TensorSpec:
    given = described.get("parameters") or {}
    known = {name: given[name] for name in _KNOWN if name in given}
    if columns := given.get("columns"):
        known["columns"] = decode_columns(str(columns))
    if buckets := given.get("pad_buckets"):
        known["pad_buckets"] = tuple(int(each) for each in str(buckets).split(","))
    return TensorSpec(described["name"], described["datatype"], described["shape"], **known)
