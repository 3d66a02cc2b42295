"""V2 metadata of a model and of the server."""

from collections.abc import Sequence
from typing import Any, Final

from shoal_runtime.signature.spec import TensorSpec
from shoal_runtime.signature.tensors import Signature
from shoal_schema.interfaces.instances import PRECISION, RUNTIME_NAME
from shoal_schema.version import VERSION
from shoal_schema.wire.columns import encode_columns

SERVER_METADATA: Final = {"name": RUNTIME_NAME, "version": VERSION, "extensions": ["binary_tensor_data"]}


def model_metadata(
    name: str,
    version: str,
    platform: str,
    signature: Signature,
    measured: Sequence[tuple[int, float]] = (),
    *,
    precision: str = "",
) -> dict[str, Any]:
    """Return a model's V2 metadata, described in docs/reference/model-metadata.md.

    Args:
        name: name of the model.
        version: version of the model.
        platform: platform in the metadata.
        signature: the model's signature.
        measured: rows and seconds of forwards during warm-up.
        precision: precision that was chosen by measurement; empty if none was.
    """
    # Parameters of V2 are scalars only, so lists become text.
    parameters: dict[str, Any] = {"max_batch_size": signature.max_batch_size}
    if signature.allowed_batch_sizes:
        parameters["allowed_batch_sizes"] = ",".join(map(str, signature.allowed_batch_sizes))
    if measured:
        parameters["forward_us"] = ",".join(f"{rows}:{round(seconds * 1e6)}" for rows, seconds in measured)
    if precision:
        parameters[PRECISION] = precision
    return {
        "name": name,
        "versions": [version],
        "platform": platform,
        "inputs": [_tensor(spec) for spec in signature.inputs],
        "outputs": [_tensor(spec) for spec in signature.outputs],
        "parameters": parameters,
    }


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    # Absent values are omitted.
    texts = {
        "content_type": spec.content_type,
        "example": spec.example,
        "carries": spec.carries,
        "columns": encode_columns(spec.columns) if spec.columns else None,
        "logical_type": spec.logical_type,
        "unit": spec.unit,
    }
    given = {key: text for key, text in texts.items() if text is not None}
    parameters: dict[str, Any] = {"batch_dim": spec.batch_dim, **given}
    if spec.optional:
        parameters["optional"] = True
    if spec.nullable:
        parameters["nullable"] = True
    if spec.pad_axis is not None:
        parameters |= {"pad_axis": spec.pad_axis, "pad_value": spec.pad_value}
        if spec.pad_buckets:
            parameters["pad_buckets"] = ",".join(map(str, spec.pad_buckets))
        if spec.pad_mask is not None:
            parameters["pad_mask"] = spec.pad_mask
    if spec.unpad_axis is not None:
        parameters |= {"unpad_axis": spec.unpad_axis, "unpad_input": spec.unpad_input}
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape), "parameters": parameters}
