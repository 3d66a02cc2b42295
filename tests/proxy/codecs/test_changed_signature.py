"""A model that comes back with another signature: what was known of the first one is forgotten."""

import numpy as np
import orjson
import pytest

from shoal_proxy.codecs.v2 import V2
from tests.fakes import tensor
from tests.proxy.signatures import call, signature

NARROW = signature([tensor("x", "FP32", [-1, 2])])
WIDE = signature([tensor("x", "FP32", [-1, 4])])


@pytest.mark.parametrize("binary", [True, False])
def test_a_request_is_read_by_the_signature_of_now(binary: bool) -> None:
    codec = V2()
    for model, width in ((NARROW, 2), (WIDE, 4), (NARROW, 2)):
        row = np.arange(width, dtype=np.float32)
        declared = {"name": "x", "datatype": "FP32", "shape": [1, width]}
        if binary:
            header = orjson.dumps({"inputs": [{**declared, "parameters": {"binary_data_size": row.nbytes}}]})
            asked = call(header + row.tobytes(), inference_header_content_length=str(len(header)))
        else:
            asked = call({"inputs": [{**declared, "data": row.tolist()}]})
        decoded = codec.decode(asked, model)
        assert decoded.inputs["x"].tolist() == [row.tolist()]
