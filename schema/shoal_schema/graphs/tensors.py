"""What a tensor holds in each row, as V2 model metadata tells it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal_schema.declaring import Json
from shoal_schema.wire.codes import CODES

ANY = -1
FLOATS = ("FP16", "FP32", "FP64", "BF16")
_UNSAID = ("batch_dim", "pad_axis", "pad_value", "pad_buckets", "pad_mask", "unpad_axis", "unpad_input", "optional")
"""Parameters that are a model's own affair, and none of a graph's callers."""

_AGREED = ("columns", "nullable", "logical_type", "unit")
"""Parameters that hold for a request only where all steps that it goes to have the same."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A datatype and the shape of one row; ``parameters`` are those that callers should know."""

    datatype: str
    shape: tuple[int, ...]
    parameters: Mapping[str, Any]

    @property
    def has_gaps(self) -> bool:
        """Return whether it has a value that says that there is none: NaN, or an empty text."""
        return self.datatype in (*FLOATS, "BYTES")

    @property
    def is_single(self) -> bool:
        """Return whether a row holds one value."""
        return all(size == 1 for size in self.shape)

    @property
    def listed(self) -> "Tensor":
        """Return a list of such, as a row holds them."""
        return replace(self, shape=(ANY, *self.shape), parameters=_without(self.parameters, {"columns"}))

    @property
    def item(self) -> "Tensor":
        """Return one of those that a row holds."""
        return replace(self, shape=self.shape[1:], parameters=_without(self.parameters, {"columns"}))

    def __str__(self) -> str:
        return f"{self.datatype}{list(self.shape)}" if self.shape else self.datatype

    def as_metadata(self, name: str) -> Json:
        """Return it as V2 has it, rows first."""
        found: Json = {"name": name, "datatype": self.datatype, "shape": [ANY, *self.shape]}
        return {**found, "parameters": {**self.parameters, "batch_dim": 0}}


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model takes and gives; ``optional`` inputs may be left out."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    optional: frozenset[str]
    calls: frozenset[str]
    """Of a graph: the graphs that it calls, and those that they call."""


def read_signature(metadata: Mapping[str, Any]) -> Signature:
    """Return the signature that V2 model metadata tells.

    Raises:
        ValueError: it tells none, or that of a model that takes no rows.
    """
    try:
        inputs, outputs = metadata["inputs"], metadata["outputs"]
        if odd := [each["name"] for each in (*inputs, *outputs) if not isinstance(each["name"], str)]:
            raise TypeError(f"{odd[0]!r:.80} is no tensor's name")
        _check_rows([*inputs, *outputs])
        masks = {_parameters(each).get("pad_mask") for each in inputs}
        return Signature(
            {each["name"]: _tensor(each) for each in inputs},
            {each["name"]: _tensor(each) for each in outputs},
            frozenset(each["name"] for each in inputs if _is_optional(each) or each["name"] in masks),
            frozenset(str(_parameters(metadata).get("graphs", "")).split(",")) - {""},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its metadata is unusable: {type(error).__name__}: {error}") from None


def fits(given: Tensor, wanted: Tensor) -> bool:
    """Return whether one may be given where the other is wanted; what is not known yet may."""
    if len(given.shape) != len(wanted.shape):
        return False
    widened = given.datatype == "FP32" and wanted.datatype == "FP64"
    same = all(a == b or ANY in (a, b) for a, b in zip(given.shape, wanted.shape, strict=True))
    return same and (given.datatype == wanted.datatype or widened)


def narrower(a: Tensor, b: Tensor) -> Tensor:
    """Return one of two that fit, with all that is known of its shape and what both accept of values."""
    apart = {name for name in _AGREED if a.parameters.get(name) != b.parameters.get(name)}
    shape = tuple(max(pair) for pair in zip(a.shape, b.shape, strict=True))
    return replace(a, shape=shape, parameters=_without(a.parameters, apart))


def wider(a: Tensor, b: Tensor) -> Tensor:
    """Return what holds one of two that fit: of a size that one of them leaves open nothing is known."""
    sizes = zip(a.shape, b.shape, strict=True)
    return replace(a, shape=tuple(ANY if ANY in pair else max(pair) for pair in sizes))


def _without(parameters: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    return {name: value for name, value in parameters.items() if name not in names}


def _parameters(of: Mapping[str, Any]) -> Mapping[str, Any]:
    return of.get("parameters") or {}


def _is_optional(tensor: Mapping[str, Any]) -> bool:
    parameters = _parameters(tensor)
    return parameters.get("optional") in (True, "true") or bool(parameters.get("carries"))


def _check_rows(tensors: list[Mapping[str, Any]]) -> None:
    if any("batch_dim" in _parameters(each) for each in tensors):
        return
    if not all(each["shape"] and int(each["shape"][0]) == ANY for each in tensors):
        raise ValueError("its tensors have no batch dimension: a graph works on rows")


def _tensor(tensor: Mapping[str, Any]) -> Tensor:
    shape = [int(size) for size in tensor["shape"]]
    parameters = _parameters(tensor)
    batch_dim = int(parameters.get("batch_dim", 0))
    if not 0 <= batch_dim < len(shape) or tensor["datatype"] not in CODES:
        raise ValueError(f"its metadata is unusable: tensor {tensor['name']!r} is {tensor['datatype']} {shape}")
    del shape[batch_dim]
    told = {name: value for name, value in parameters.items() if name not in _UNSAID}
    return Tensor(tensor["datatype"], tuple(shape), told)
