"""Tensors of one row, from V2 model metadata."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal_schema.fields.declaring import Json
from shoal_schema.wire.codes import CODES

ANY = -1
FLOATS = ("FP16", "FP32", "FP64", "BF16")
_UNSAID = ("batch_dim", "pad_axis", "pad_value", "pad_buckets", "pad_mask", "unpad_axis", "unpad_input", "optional")
"""Parameters of a model that are not published to a graph's clients."""
_AGREED = ("columns", "nullable", "logical_type", "unit")
"""Parameters that are kept only if all steps agree that read a request's tensor, or whose tensors are combined."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Datatype and shape of one row of a tensor; ``parameters`` are those published to clients."""

    datatype: str
    shape: tuple[int, ...]
    parameters: Mapping[str, Any]

    @property
    def has_gaps(self) -> bool:
        """Whether the datatype can represent an absent value.

        Floating-point numbers use NaN, and texts are empty.
        """
        return self.datatype in (*FLOATS, "BYTES")

    @property
    def is_single(self) -> bool:
        """Whether a row holds one value."""
        return all(size == 1 for size in self.shape)

    @property
    def listed(self) -> "Tensor":
        """This tensor with a list of values in each row, as one more dimension."""
        return replace(self, shape=(ANY, *self.shape), parameters=_without(self.parameters, {"columns"}))

    @property
    def item(self) -> "Tensor":
        """The tensor of one item, if each row of this tensor is a list."""
        return replace(self, shape=self.shape[1:], parameters=_without(self.parameters, {"columns"}))

    def __str__(self) -> str:
        return f"{self.datatype}{list(self.shape)}" if self.shape else self.datatype

    def as_metadata(self, name: str) -> Json:
        """Return the tensor's V2 metadata, with the batch dimension first."""
        found: Json = {"name": name, "datatype": self.datatype, "shape": [ANY, *self.shape]}
        return {**found, "parameters": {**self.parameters, "batch_dim": 0}}


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a model; ``optional`` inputs may be left out."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    optional: frozenset[str]
    calls: frozenset[str]
    """For a graph: the graphs that it calls, directly or indirectly."""


def read_signature(metadata: Mapping[str, Any]) -> Signature:
    """Return the signature in V2 model metadata.

    Raises:
        ValueError: the metadata has no signature, or the model has no batch dimension.
    """
    try:
        inputs, outputs = metadata["inputs"], metadata["outputs"]
        if odd := [each["name"] for each in (*inputs, *outputs) if not isinstance(each["name"], str)]:
            raise TypeError(f"{odd[0]!r:.80} is not a name of a tensor")
        tensors = [*inputs, *outputs]
        declared = any("batch_dim" in _parameters(each) for each in tensors)
        if not declared and not all(each["shape"] and int(each["shape"][0]) == ANY for each in tensors):
            raise ValueError("its tensors have no batch dimension, which a graph needs")
        masks = {_parameters(each).get("pad_mask") for each in inputs}
        # The runtime makes masks itself, and HTTP heads are carried beside the tensors.
        optional = [
            each["name"]
            for each in inputs
            if each["name"] in masks
            or _parameters(each).get("optional") in (True, "true")
            or _parameters(each).get("carries")
        ]
        return Signature(
            {each["name"]: _tensor(each) for each in inputs},
            {each["name"]: _tensor(each) for each in outputs},
            frozenset(optional),
            frozenset(str(_parameters(metadata).get("graphs", "")).split(",")) - {""},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its metadata is unusable: {type(error).__name__}: {error}") from None


def fits(given: Tensor, wanted: Tensor) -> bool:
    """Return whether tensor ``given`` may be passed for ``wanted``; an unknown size fits any size."""
    if len(given.shape) != len(wanted.shape):
        return False
    # The runtime converts FP32 to FP64 exactly.
    widened = given.datatype == "FP32" and wanted.datatype == "FP64"
    same = all(a == b or ANY in (a, b) for a, b in zip(given.shape, wanted.shape, strict=True))
    return same and (given.datatype == wanted.datatype or widened)


def narrower(a: Tensor, b: Tensor) -> Tensor:
    """Return the most specific tensor for two tensors that fit.

    A size is known if one of the tensors knows it. Equal parameters are kept.
    """
    shape = tuple(max(pair) for pair in zip(a.shape, b.shape, strict=True))
    return replace(a, shape=shape, parameters=_agreed(a, b))


def wider(a: Tensor, b: Tensor) -> Tensor:
    """Return the most general tensor for two tensors that fit.

    A size is known only if both tensors know it. Equal parameters are kept.
    """
    shape = tuple(ANY if ANY in pair else max(pair) for pair in zip(a.shape, b.shape, strict=True))
    return replace(a, shape=shape, parameters=_agreed(a, b))


def _agreed(a: Tensor, b: Tensor) -> Mapping[str, Any]:
    return _without(a.parameters, {name for name in _AGREED if a.parameters.get(name) != b.parameters.get(name)})


def _without(parameters: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    return {name: value for name, value in parameters.items() if name not in names}


def _parameters(of: Mapping[str, Any]) -> Mapping[str, Any]:
    return of.get("parameters") or {}


def _tensor(tensor: Mapping[str, Any]) -> Tensor:
    shape = [int(size) for size in tensor["shape"]]
    parameters = _parameters(tensor)
    batch_dim = int(parameters.get("batch_dim", 0))
    if not 0 <= batch_dim < len(shape) or tensor["datatype"] not in CODES:
        raise ValueError(f"its metadata is unusable: tensor {tensor['name']!r} is {tensor['datatype']} {shape}")
    # Shapes here are those of one row.
    del shape[batch_dim]
    published = {name: value for name, value in parameters.items() if name not in _UNSAID}
    return Tensor(tensor["datatype"], tuple(shape), published)
