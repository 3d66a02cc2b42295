"""A sample item for a load test, made from the model's signature alone."""

from typing import Any

import numpy as np

from shoal.errors import InvalidInput
from shoal.wire.datatypes import numpy_dtype
from shoal.wire.signature import Signature

FREE_LENGTH = 16


def sample(signature: Signature) -> dict[str, Any]:
    """Return one item of ones; a free dimension gets length 16, optional inputs are omitted.

    Raises:
        InvalidInput: an input takes text or files, which a signature does not describe.
    """
    # A model whose inputs are all optional gets the first one.
    required = [tensor for tensor in signature.inputs if not tensor.optional] or list(signature.inputs[:1])
    item: dict[str, Any] = {}
    for tensor in required:
        if tensor.datatype == "BYTES":
            kinds = f" ({', '.join(tensor.content_types)})" if tensor.content_types else ""
            raise InvalidInput(
                f"input {tensor.name} takes bytes{kinds}, for which there is no sample. Pass one with --item FILE,"
                " --text or --data JSON"
            )
        shape = tuple(FREE_LENGTH if length < 0 else length for length in signature.row_shape(tensor))
        item[tensor.name] = np.ones(shape, numpy_dtype(tensor.datatype))
    return item
