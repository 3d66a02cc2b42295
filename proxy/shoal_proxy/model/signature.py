"""A model's signature: the tensors it takes and gives, read from V2 model metadata.

Arrays inside the proxy are *canonical*: their batch dimension, wherever the model has it, comes first. Shapes here are
canonical too; ``batch_dim`` says where the dimension belongs on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal_proxy.model.datatypes import DTYPES


class SignatureError(ValueError):
    """The runtime's metadata cannot be used; the message says which part."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input: canonical ``shape`` (-1 where a dimension may vary) and the rules of docs/contracts.md, section 1."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    batch_dim: int = 0
    content_types: tuple[str, ...] = ()
    optional: bool = False
    pad_axis: int | None = None
    pad_value: float = 0
    pad_buckets: tuple[int, ...] = ()
    pad_mask: str | None = None
    one_row: list[int] | None = None
    """The wire shape of a single row, where rows have one shape only: what most requests say."""

    @property
    def holds_json(self) -> bool:
        """Tell whether each element is one JSON value."""
        return "application/json" in self.content_types


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One output; see `InputSpec`."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    batch_dim: int = 0
    content_type: str = "text/plain"
    unpad_axis: int | None = None
    unpad_input: str | None = None


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """What one loaded model takes and gives.

    ``batches`` is false for a model without a batch dimension: its requests travel alone and count as one row.
    """

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: Mapping[str, InputSpec]
    outputs: Mapping[str, OutputSpec]
    batches: bool = True
    max_batch_size: int | None = None
    allowed_batch_sizes: tuple[int, ...] = ()
    pads: bool = False
    """Whether any input has a padding rule."""
    fixed: bool = False
    """Whether every row of every request has the same shapes, so that all requests may share a batch."""


def parse_metadata(metadata: Mapping[str, Any]) -> ModelSignature:
    """Return the signature that V2 model ``metadata`` describes.

    Raises:
        SignatureError: a tensor has no name, an unknown datatype or a malformed shape or parameter.
    """
    try:
        inputs = {tensor["name"]: tensor for tensor in metadata["inputs"]}
        outputs = {tensor["name"]: tensor for tensor in metadata["outputs"]}
        batches = _batches([*inputs.values(), *outputs.values()])
        input_specs = _with_masks({name: _input_spec(tensor, batches) for name, tensor in inputs.items()})
        output_specs = {name: _output_spec(tensor, batches) for name, tensor in outputs.items()}
        max_batch_size = _parameters(metadata).get("max_batch_size")
        return ModelSignature(
            name=str(metadata["name"]),
            versions=tuple(map(str, metadata.get("versions") or ())),
            platform=str(metadata.get("platform", "")),
            inputs=input_specs,
            outputs=output_specs,
            batches=batches,
            max_batch_size=None if max_batch_size is None else int(max_batch_size),
            allowed_batch_sizes=tuple(map(int, _words(_parameters(metadata).get("allowed_batch_sizes")))),
            pads=any(spec.pad_axis is not None for spec in input_specs.values()),
            fixed=batches and all(_is_fixed(spec) for spec in input_specs.values()),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SignatureError(f"model metadata is unusable: {type(error).__name__}: {error}") from error


def _parameters(owner: Mapping[str, Any]) -> Mapping[str, Any]:
    return owner.get("parameters") or {}


def _batches(tensors: Sequence[Mapping[str, Any]]) -> bool:
    """A tensor that names its batch dimension batches; without a word, -1 in front everywhere means the same."""
    if any("batch_dim" in _parameters(tensor) for tensor in tensors):
        return True
    return all(tensor["shape"] and int(tensor["shape"][0]) == -1 for tensor in tensors)


def _is_fixed(spec: InputSpec) -> bool:
    return all(size >= 0 for size in spec.shape[1:]) and not spec.optional and spec.pad_axis is None


def _placed(tensor: Mapping[str, Any], batches: bool) -> tuple[tuple[int, ...], int]:  # noqa: FBT001
    """Return the canonical shape and the batch dimension's place on the wire."""
    shape = [int(size) for size in tensor["shape"]]
    if tensor["datatype"] not in DTYPES:
        raise ValueError(f"tensor {tensor['name']!r} has unknown datatype {tensor['datatype']!r}")
    batch_dim = int(_parameters(tensor).get("batch_dim", 0))
    if not batches:
        return tuple(shape), 0
    if not 0 <= batch_dim < len(shape):
        raise ValueError(f"tensor {tensor['name']!r} has batch_dim {batch_dim} but shape {shape}")
    rows = shape.pop(batch_dim)
    return (rows, *shape), batch_dim


def _canonical_axis(axis: Any, batch_dim: int) -> int | None:
    """Return where a wire axis lies once the batch dimension has moved to the front."""
    if axis is None:
        return None
    if int(axis) == batch_dim:
        raise ValueError(f"axis {axis} is the batch dimension and cannot be padded")
    return int(axis) + 1 if int(axis) < batch_dim else int(axis)


def _with_masks(specs: dict[str, InputSpec]) -> dict[str, InputSpec]:
    """A mask is padded with its inputs, by zeros, and may be left out, without having to say so itself."""
    for spec in list(specs.values()):
        mask = specs.get(spec.pad_mask or "")
        if spec.pad_mask and mask is None:
            raise ValueError(f"input {spec.name!r} names {spec.pad_mask!r} as its mask, which is no input")
        if mask is not None:
            axis = mask.pad_axis if mask.pad_axis is not None else len(mask.shape) - 1
            specs[mask.name] = replace(
                mask,
                optional=True,
                pad_axis=axis,
                pad_value=0,
                pad_buckets=spec.pad_buckets,
                pad_mask=mask.name,
            )
    return specs


def _words(text: Any) -> tuple[str, ...]:
    return tuple(word.strip() for word in str(text or "").split(",") if word.strip())


def _input_spec(tensor: Mapping[str, Any], batches: bool) -> InputSpec:  # noqa: FBT001
    shape, batch_dim = _placed(tensor, batches)
    rules = _parameters(tensor)
    return InputSpec(
        name=tensor["name"],
        datatype=tensor["datatype"],
        shape=shape,
        batch_dim=batch_dim,
        content_types=_words(rules.get("content_type")),
        optional=bool(rules.get("optional", False)),
        pad_axis=_canonical_axis(rules.get("pad_axis"), batch_dim),
        pad_value=rules.get("pad_value", 0),
        pad_buckets=tuple(sorted(int(bucket) for bucket in _words(rules.get("pad_buckets")))),
        pad_mask=rules.get("pad_mask"),
        one_row=None if -1 in shape[1:] or not shape else [1, *shape[1:]] if not batch_dim else None,
    )


def _output_spec(tensor: Mapping[str, Any], batches: bool) -> OutputSpec:  # noqa: FBT001
    shape, batch_dim = _placed(tensor, batches)
    rules = _parameters(tensor)
    return OutputSpec(
        name=tensor["name"],
        datatype=tensor["datatype"],
        shape=shape,
        batch_dim=batch_dim,
        content_type=rules.get("content_type", "text/plain"),
        unpad_axis=_canonical_axis(rules.get("unpad_axis"), batch_dim),
        unpad_input=rules.get("unpad_input"),
    )
