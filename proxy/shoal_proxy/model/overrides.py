"""What a deployment sets otherwise than its model says."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shoal_proxy.model.signature import SignatureError

PadBuckets = Mapping[str, Sequence[int]]
NO_BUCKETS: Final[PadBuckets] = {}


def with_pad_buckets(metadata: Mapping[str, Any], buckets: PadBuckets) -> Mapping[str, Any]:
    """Return V2 model ``metadata`` with other lengths to pad to: per input, instead of the model's own.

    Raises:
        SignatureError: the model has no such input, or does not pad it; buckets alone would have no effect.
    """
    wanted = dict(buckets)
    tensors = [_replaced(tensor, wanted.pop(str(tensor.get("name")), None)) for tensor in metadata.get("inputs") or ()]
    if wanted:
        names = [str(tensor.get("name")) for tensor in tensors]
        raise SignatureError(f"batching.padBuckets names {sorted(wanted)}, but the model's inputs are {names}")
    return {**metadata, "inputs": tensors}


def _replaced(tensor: Mapping[str, Any], buckets: Sequence[int] | None) -> Mapping[str, Any]:
    if buckets is None:
        return tensor
    parameters = tensor.get("parameters") or {}
    if parameters.get("pad_axis") is None:
        raise SignatureError(
            f"batching.padBuckets names input {tensor['name']!r}, which the model does not pad: it has no pad_axis"
        )
    return {**tensor, "parameters": {**parameters, "pad_buckets": ",".join(map(str, buckets))}}
