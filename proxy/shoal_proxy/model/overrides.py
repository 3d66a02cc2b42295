"""Deployment settings that override parts of a model's metadata."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shoal_proxy.model.signature import SignatureError

PadBuckets = Mapping[str, Sequence[int]]
NO_BUCKETS: Final[PadBuckets] = {}


def with_pad_buckets(metadata: Mapping[str, Any], buckets: PadBuckets) -> Mapping[str, Any]:
    """Return V2 model ``metadata`` with other pad buckets, by input name.

    Raises:
        SignatureError: the model has no such input, or does not pad it.
    """
    # Names that remain at the end are no inputs.
    wanted = dict(buckets)
    tensors: list[Mapping[str, Any]] = []
    for tensor in metadata.get("inputs") or ():
        own = wanted.pop(str(tensor.get("name")), None)
        if own is None:
            tensors.append(tensor)
            continue
        parameters = tensor.get("parameters") or {}
        if parameters.get("pad_axis") is None:  # buckets alone would have no effect
            raise SignatureError(
                f"batching.padBuckets names input {tensor['name']!r}, which has no pad_axis in the model and is "
                "not padded"
            )
        tensors.append({**tensor, "parameters": {**parameters, "pad_buckets": ",".join(map(str, own))}})
    if wanted:
        names = [str(tensor.get("name")) for tensor in tensors]
        raise SignatureError(f"batching.padBuckets names {sorted(wanted)}, but the model's inputs are {names}")
    return {**metadata, "inputs": tensors}
