"""Signature of a model: its inputs and outputs, from V2 model metadata.

Arrays inside the proxy are *canonical*: the batch dimension comes first, wherever the model has it. Shapes in this
module are canonical too; ``batch_dim`` is the position of the batch dimension on the wire.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shoal_schema.interfaces.instances import PRECISION
from shoal_schema.resource.runtime import Precision
from shoal_schema.wire.carried_headers import REQUEST_HEADERS, RESPONSE_HEAD
from shoal_schema.wire.columns import decode_columns
from shoal_schema.wire.datatypes import DTYPES

_NULLABLE = ("FP16", "FP32", "FP64", "BYTES")
"""Datatypes that can hold a missing value."""


class SignatureError(ValueError):
    """The runtime's metadata is unusable; the message names the faulty part."""


@dataclass(frozen=True)
class InputSpec:
    """Specification of an input; its canonical shape has -1 for any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    batch_dim: int = 0
    content_types: tuple[str, ...] = ()
    optional: bool = False
    columns: tuple[str, ...] = ()
    nullable: bool = False
    logical_type: str = ""
    unit: str = ""
    pad_axis: int | None = None
    pad_value: float = 0
    pad_buckets: tuple[int, ...] = ()
    pad_mask: str | None = None
    carries: str = ""
    example: str = ""
    """An example text that the model accepts."""
    one_row: list[int] | None = None
    """The wire shape of a single row, where rows have one shape only: the shape in most requests."""

    @property
    def holds_json(self) -> bool:
        """Return whether each element of the input is one JSON value."""
        return "application/json" in self.content_types


@dataclass(frozen=True)
class OutputSpec:
    """Specification of an output, with the conventions of `InputSpec`."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    batch_dim: int = 0
    content_type: str = "text/plain"
    unpad_axis: int | None = None
    unpad_input: str | None = None
    carries: str = ""
    columns: tuple[str, ...] = ()
    """Names of columns, such as a classifier's classes; only shown to clients."""


@dataclass(frozen=True)
class ModelSignature:
    """Inputs, outputs and batching limits of a loaded model."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: Mapping[str, InputSpec]
    outputs: Mapping[str, OutputSpec]
    batches: bool = True
    """False for a model without a batch dimension: its requests run alone and count as one row."""
    max_batch_size: int | None = None
    allowed_batch_sizes: tuple[int, ...] = ()
    measured: tuple[tuple[int, float], ...] = ()
    """Rows and seconds of the runtime's warm-up forwards."""
    pads: bool = False
    """Whether any input has a padding rule."""
    columns: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Input and position in it, by name of a column that is part of an input."""
    fixed: bool = False
    """Whether every row of every request has the same shapes, so that all requests may share a batch."""
    request_headers: str = ""
    """The input that receives each client's headers; empty for none."""
    response_head: str = ""
    """The output that holds status and headers of each response; empty for none."""
    graphs: str = ""
    """For a graph: names of the graph and of called graphs, separated by commas."""
    precision: str = ""
    """The precision that the runtime chose by measurement; empty if it chose none."""

    @property
    def identity(self) -> "ModelSignature":
        """Return the signature without what differs between two starts of one model: the measured times.

        Runtimes of equal identities serve one model with the same results, so they may share a service.
        """
        return replace(self, measured=())

    def largest_batch(self, configured_rows: int) -> int:
        """Return the smaller of the configured and the model's row limit.

        1 for a model without batch dimension.
        """
        if not self.batches:
            return 1
        return configured_rows if self.max_batch_size is None else min(configured_rows, self.max_batch_size)


def parse_metadata(metadata: Mapping[str, Any]) -> ModelSignature:
    """Return the signature that V2 model ``metadata`` describes.

    Raises:
        SignatureError: a tensor has no name, an unknown datatype or a malformed shape or parameter.
    """
    try:
        inputs, outputs = _by_name(metadata["inputs"]), _by_name(metadata["outputs"])
        tensors = [*inputs.values(), *outputs.values()]
        # One tensor that names its batch dimension is enough; otherwise all shapes must start with -1.
        batches = any("batch_dim" in _parameters(tensor) for tensor in tensors) or all(
            tensor["shape"] and int(tensor["shape"][0]) == -1 for tensor in tensors
        )
        input_specs = _with_masks({name: _input_spec(tensor, batches) for name, tensor in inputs.items()})
        output_specs = {name: _output_spec(tensor, batches, input_specs) for name, tensor in outputs.items()}
        parameters = _parameters(metadata)
        # Parameters of V2 metadata may be text or numbers.
        max_batch_size = parameters.get("max_batch_size")
        if max_batch_size is not None and int(max_batch_size) < 1:
            raise ValueError(f"max_batch_size must be at least 1, not {max_batch_size!r}")
        # Pairs of rows:microseconds.
        pairs = [word.split(":") for word in _words(parameters.get("forward_us"))]
        measured = tuple((int(rows), int(micros) / 1e6) for rows, micros in pairs)
        if not all(rows > 0 and seconds >= 0 for rows, seconds in measured):
            raise ValueError(f"forward_us must be rows:microseconds pairs, not {parameters.get('forward_us')!r}")
        return ModelSignature(
            name=str(metadata["name"]),
            versions=tuple(map(str, metadata.get("versions") or ())),
            platform=str(metadata.get("platform", "")),
            inputs=input_specs,
            outputs=output_specs,
            batches=batches,
            max_batch_size=None if max_batch_size is None else int(max_batch_size),
            allowed_batch_sizes=tuple(map(int, _words(parameters.get("allowed_batch_sizes")))),
            measured=measured,
            pads=any(spec.pad_axis is not None for spec in input_specs.values()),
            columns={
                name: (spec.name, place)
                for spec in input_specs.values()
                for place, name in enumerate(spec.columns)
                if batches
            },
            # All requests have the same shapes if no dimension varies and no input may be missing.
            fixed=batches
            and all(
                min(spec.shape[1:], default=0) >= 0 and not spec.optional and spec.pad_axis is None
                for spec in input_specs.values()
            ),
            request_headers=_carrier(input_specs.values(), REQUEST_HEADERS),
            response_head=_carrier(output_specs.values(), RESPONSE_HEAD),
            graphs=str(parameters.get("graphs", "")),
            # A foreign runtime may use this key for something else.
            precision=str(found) if (found := parameters.get(PRECISION)) in list(Precision) else "",
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SignatureError(f"model metadata is unusable: {type(error).__name__}: {error}") from error


def _carrier(specs: Iterable[InputSpec | OutputSpec], what: str) -> str:
    """Return the name of the tensor that carries ``what``; empty for none."""
    for spec in specs:
        if spec.carries == what:
            if spec.datatype != "BYTES" or len(spec.shape) != 1:
                raise ValueError(f"tensor {spec.name!r} carries {what}; it must be BYTES, one element per row")
            return spec.name
    return ""


def _by_name(tensors: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    named: dict[str, Mapping[str, Any]] = {}
    for tensor in tensors:
        name = tensor["name"]
        if type(name) is not str or not name or name in named:
            raise ValueError(f"tensor name {name!r} is not text, or is not unique")
        named[name] = tensor
    return named


def _parameters(owner: Mapping[str, Any]) -> Mapping[str, Any]:
    return owner.get("parameters") or {}


def _placed(tensor: Mapping[str, Any], batches: bool) -> tuple[tuple[int, ...], int]:  # noqa: FBT001
    """Return a tensor's canonical shape, and its batch dimension on the wire."""
    shape = [int(size) for size in tensor["shape"]]
    if any(size < -1 for size in shape):
        raise ValueError(f"tensor {tensor['name']!r} has shape {shape}: a size must be -1 (any size) or at least 0")
    if tensor["datatype"] not in DTYPES:
        raise ValueError(f"tensor {tensor['name']!r} has unknown datatype {tensor['datatype']!r}")
    batch_dim = int(_parameters(tensor).get("batch_dim", 0))
    if not batches:
        return tuple(shape), 0
    if not 0 <= batch_dim < len(shape):
        raise ValueError(f"tensor {tensor['name']!r} has batch_dim {batch_dim} but shape {shape}")
    rows = shape.pop(batch_dim)
    # Canonical arrays have the batch dimension in front.
    return (rows, *shape), batch_dim


def _canonical_axis(tensor: Mapping[str, Any], key: str, batches: bool, batch_dim: int) -> int | None:  # noqa: FBT001
    """Return the canonical index of the wire axis in parameter ``key``."""
    given = _parameters(tensor).get(key)
    if given is None:
        return None
    axis, name = int(given), tensor["name"]
    if not batches:
        raise ValueError(f"tensor {name!r} has {key} {axis}, which needs a batch dimension")
    if axis == batch_dim or not 0 <= axis < len(tensor["shape"]):
        raise ValueError(
            f"tensor {name!r} has {key} {axis}; it must be an axis of {tensor['shape']} other than the batch dimension"
        )
    # Axes before the batch dimension move back by one.
    return axis + 1 if axis < batch_dim else axis


def _with_masks(specs: dict[str, InputSpec]) -> dict[str, InputSpec]:
    """Make padding masks optional, and pad them with zeros like their inputs."""
    for spec in list(specs.values()):
        if spec.pad_axis is None and (spec.pad_mask or spec.pad_buckets):
            raise ValueError(f"input {spec.name!r} has pad_mask or pad_buckets, which need pad_axis")
        mask = specs.get(spec.pad_mask or "")
        if spec.pad_mask and mask is None:
            raise ValueError(f"input {spec.name!r} has pad_mask {spec.pad_mask!r}, which is not an input")
        if mask is not None:
            if len(mask.shape) != 2 or mask.datatype in ("BYTES", "BF16"):
                raise ValueError(f"mask {mask.name!r} must be rows x length, of numbers other than BF16 or of BOOL")
            # A mask is rows x length, so its last axis follows the inputs.
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


def _pad_value(tensor: Mapping[str, Any]) -> float:
    """Return the padding value, which the tensor's datatype must hold."""
    value, datatype = _parameters(tensor).get("pad_value", 0), tensor["datatype"]
    if type(value) not in (int, float, bool):
        raise ValueError(f"tensor {tensor['name']!r} has pad_value {value!r}, which is not a number")
    # Compared in the tensor's own type, which may not hold the number.
    dtype = DTYPES[datatype]
    if value and (datatype in ("BYTES", "BF16") or (dtype.kind in "iub" and dtype.type(value) != value)):
        raise ValueError(f"tensor {tensor['name']!r} has pad_value {value!r}, which {datatype} cannot hold")
    # Integers stay exact beyond 2**53.
    return float(value) if type(value) is float else int(value)


def _words(text: Any) -> tuple[str, ...]:
    return tuple(word.strip() for word in str(text or "").split(",") if word.strip())


def _input_spec(tensor: Mapping[str, Any], batches: bool) -> InputSpec:  # noqa: FBT001
    """Return the specification of an input, and check the input's parameters."""
    shape, batch_dim = _placed(tensor, batches)
    rules = _parameters(tensor)
    buckets = sorted({int(bucket) for bucket in _words(rules.get("pad_buckets"))})
    if buckets and buckets[0] < 1:
        raise ValueError(f"tensor {tensor['name']!r} has pad_buckets {buckets}; lengths must be at least 1")
    return InputSpec(
        name=tensor["name"],
        datatype=tensor["datatype"],
        shape=shape,
        batch_dim=batch_dim,
        content_types=_words(rules.get("content_type")),
        optional=rules.get("optional") in (True, "true"),
        columns=_columns(tensor, shape, batch_dim),
        nullable=rules.get("nullable") in (True, "true") and tensor["datatype"] in _NULLABLE,
        logical_type=str(rules.get("logical_type", "")),
        unit=str(rules.get("unit", "")),
        pad_axis=_canonical_axis(tensor, "pad_axis", batches, batch_dim),
        pad_value=_pad_value(tensor),
        pad_buckets=tuple(buckets),
        pad_mask=rules.get("pad_mask"),
        carries=str(rules.get("carries", "")),
        example=str(rules.get("example", "")),
        one_row=[1, *shape[1:]]
        if batches and not batch_dim and shape[0] == -1 and min(shape[1:], default=1) > 0
        else None,
    )


def _output_spec(tensor: Mapping[str, Any], batches: bool, inputs: Mapping[str, InputSpec]) -> OutputSpec:  # noqa: FBT001
    """Return the specification of an output, and check the output's parameters."""
    shape, batch_dim = _placed(tensor, batches)
    rules = _parameters(tensor)
    unpad_axis = _canonical_axis(tensor, "unpad_axis", batches, batch_dim)
    source = inputs.get(rules.get("unpad_input") or "")
    # Only a padded input's own length can be cut to.
    if unpad_axis is not None and (source is None or source.pad_axis is None):
        raise ValueError(f"output {tensor['name']!r} has unpad_axis; its unpad_input must be a padded input")
    return OutputSpec(
        name=tensor["name"],
        datatype=tensor["datatype"],
        shape=shape,
        batch_dim=batch_dim,
        content_type=str(rules.get("content_type", "text/plain")),
        unpad_axis=unpad_axis,
        unpad_input=rules.get("unpad_input"),
        carries=str(rules.get("carries", "")),
        columns=_columns(tensor, shape, batch_dim),
    )


def _columns(tensor: Mapping[str, Any], shape: tuple[int, ...], batch_dim: int) -> tuple[str, ...]:
    """Return the column names of a tensor; empty if it has none."""
    text = _parameters(tensor).get("columns")
    columns = decode_columns(str(text)) if text is not None else ()
    # Columns are single numbers of a row, so only a tensor of rows x columns can have them.
    if columns and (batch_dim or shape[1:] != (len(columns),) or tensor["datatype"] == "BYTES"):
        raise ValueError(f"tensor {tensor['name']!r} names {len(columns)} columns, but its shape is {tensor['shape']}")
    return columns
